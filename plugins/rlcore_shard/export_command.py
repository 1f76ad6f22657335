"""The command `rlcore export`: copy a checkpoint with whole tensors in safetensors files."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore export` to its parser, and return the function that runs it."""
    parser.description = (
        "Copy a checkpoint that was written with checkpoint.format=dcp, with whole tensors in safetensors files: "
        "transformers loads its model/, and run.resume takes its folder."
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="folder such as runs/mine/checkpoints/00000120"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", required=True, help="folder to write, which does not exist"
    )
    return _export


def _export(arguments: argparse.Namespace) -> int:
    from rlcore.safe_text import write
    from rlcore_shard.parallel_files import export_checkpoint

    export_checkpoint(arguments.checkpoint, arguments.out)
    write(f"wrote {arguments.out}, with the model in {arguments.out / 'model'}")
    return 0
