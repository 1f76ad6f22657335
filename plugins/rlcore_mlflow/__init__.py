"""Send a run's metrics, completions and configuration to MLflow, in a local database or on a tracking server."""
