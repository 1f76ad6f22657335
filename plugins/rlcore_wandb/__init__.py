"""Send a run's metrics, completions and configuration to Weights & Biases, or keep them to be sent later."""
