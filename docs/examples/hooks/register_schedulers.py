"""A schedule of `transformers` under another name, and one that decays by a factor at given steps."""

from rlcore import hookimpl
from rlcore.config import config, option


@config
class FallsConfig:
    """Steps and factor of the decay."""

    at: tuple[int, ...] = option((100, 200), "optimizer steps before which the rate decays", ge=1)
    factor: float = option(0.1, "factor of each decay", gt=0, lt=1)


@hookimpl
def register_schedulers(register):
    register("decay", "transformers:get_linear_schedule_with_warmup", summary="linear decay")
    register("falls", "register_schedulers:make_falls", config=FallsConfig, summary="decay by a factor at given steps")


def make_falls(optimizer, *, num_warmup_steps, at, factor):
    from torch.optim.lr_scheduler import LambdaLR

    def rate(step):
        return min(1.0, (step + 1) / (num_warmup_steps + 1)) * factor ** sum(step >= each for each in at)

    return LambdaLR(optimizer, rate)
