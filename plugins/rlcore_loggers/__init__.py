"""Send a run's metrics, completions and configuration to TensorBoard, Weights & Biases, Trackio or MLflow."""
