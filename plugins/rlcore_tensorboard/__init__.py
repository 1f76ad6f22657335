"""Write a run's metrics, completions and configuration to TensorBoard event files."""
