"""Upload trained models to a folder that others read."""

import shutil
from pathlib import Path

from rlcore import hookimpl

SHELF = Path("shelf")


class Shelf:
    def check(self, repo, where):
        SHELF.mkdir(exist_ok=True)

    def push(self, folder, repo, **options):
        shutil.copytree(folder, SHELF / repo)
        print(f"uploaded to {SHELF / repo}")
        return str(SHELF / repo)


@hookimpl
def find_uploader():
    return Shelf()
