"""A run's folder: claim it, write and verify checkpoints, prune and restore them."""
