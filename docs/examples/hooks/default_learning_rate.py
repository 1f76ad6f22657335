"""Choose the learning rate of a run that sets none by the width of the model."""

from rlcore import hookimpl


@hookimpl
def default_learning_rate(config, learner):
    rate, _ = config.published
    width = learner.model.config.hidden_size
    print(f"width {width}: learning rate {rate * 768 / width:.1e}")
    return rate * 768 / width
