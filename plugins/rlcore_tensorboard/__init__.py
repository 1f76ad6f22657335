"""Write a run's metrics, completions and configuration to event files that TensorBoard shows."""
