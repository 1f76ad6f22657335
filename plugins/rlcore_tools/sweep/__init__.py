"""Sweeps over options of a run with Optuna: `rlcore sweep`."""
