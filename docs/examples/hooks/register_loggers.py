"""A logger that writes one metric to a text file."""

from rlcore import hookimpl
from rlcore.config import config, option


@config
class OneConfig:
    """One metric in a text file."""

    metric: str = option("loss/total", "name of the metric to write")
    file: str = option("one.txt", "file in the run's folder")


@hookimpl
def register_loggers(register):
    register("one", "register_loggers:OneLogger", config=OneConfig, summary="one metric in a text file")


class OneLogger:
    def __init__(self, config, run):
        self.metric, self.file = config.metric, (run.dir / config.file).open("a")

    def metrics(self, step, metrics):
        if self.metric in metrics:
            print(step, metrics[self.metric], file=self.file, flush=True)

    def completions(self, step, rows):
        pass

    def close(self, error):
        self.file.close()
