"""Upload trained models to a folder that others read, and choose learning rates by the width of the model."""

import shutil
from pathlib import Path

from rlcore import hookimpl
from rlcore.hookspecs import Services

SHELF = Path("shelf")


class Shelf:
    def check(self, repo, where):
        SHELF.mkdir(exist_ok=True)

    def push(self, folder, repo, **options):
        shutil.copytree(folder, SHELF / repo)
        print(f"uploaded to {SHELF / repo}")
        return str(SHELF / repo)


def rate_of_width(config, learner):
    rate, _ = config.published
    width = learner.model.config.hidden_size
    print(f"width {width}: learning rate {rate * 768 / width:.1e}")
    return rate * 768 / width


@hookimpl
def register_services(register):
    register(Services(uploader=Shelf, learning_rate=rate_of_width))
