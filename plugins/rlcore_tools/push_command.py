"""The command `rlcore push`: upload the trained model of a run to the Hugging Face hub."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore push` to its parser, and return the function that runs it."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or a folder with a model")
    parser.add_argument("repo", metavar="REPO", help="repository of the hub, user/name; created if it does not exist")
    parser.add_argument("--private", action="store_true", default=None, help="create a private repository")
    parser.add_argument("--revision", help="branch to push to; created if it does not exist")
    return _push


def _push(arguments: argparse.Namespace) -> int:
    from rlcore.safe_text import write
    from rlcore_tools.hub import push

    run: Path = arguments.run
    folder = run / "model" if (run / "model").is_dir() else run
    url = push(folder, arguments.repo, run=run, private=arguments.private, revision=arguments.revision)
    write(f"pushed {folder} to {url}")
    return 0
