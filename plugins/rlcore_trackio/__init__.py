"""Send a run's metrics, completions and configuration to Trackio, on this machine or in a Space of the hub."""
