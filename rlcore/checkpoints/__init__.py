"""The folder of a run: claim it, and write, verify, prune and restore its checkpoints."""
