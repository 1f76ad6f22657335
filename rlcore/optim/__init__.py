"""From a batch to an optimizer step: minibatches, metrics, optimizers, learning-rate schedules."""
