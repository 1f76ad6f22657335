"""Where the weights, gradients and optimizer state of a model lie: whole on every process, or a part on each."""
