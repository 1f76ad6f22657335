"""Optimizers of torch, transformers and bitsandbytes, and learning-rate schedules."""
