"""Decode in fixed shapes and fixed places, on GPUs as replayed CUDA graphs."""
