"""Send a run's metrics, completions and configuration to Weights & Biases, or store them for a later `wandb sync`."""
