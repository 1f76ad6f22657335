"""Sources of data, and the pipelines that turn their rows into tokens."""
