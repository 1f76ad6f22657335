"""A strategy that keeps the whole model on every process and logs every step of the optimizer."""

from rlcore import hookimpl


@hookimpl
def register_shardings(register):
    register("counted", "register_shardings:build", summary="the whole model, with the number of steps in the log")


def build(config, ranks):
    from rlcore.logging import get_logger
    from rlcore.sharding import WholeModel

    class Counted(WholeModel):
        steps = 0

        def step(self, max_norm):
            self.steps += 1
            get_logger("counted").info("step", number=self.steps)
            return super().step(max_norm)

    return Counted(ranks)
