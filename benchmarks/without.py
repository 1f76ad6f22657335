"""Run another program of this folder with one technique disabled, to measure its gain.

    python without.py TECHNIQUE SCRIPT [ARGUMENT ...]

The technique's option in `TECHNIQUES` is set to false; the program must accept `--set`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rlcore_transformers.models.speed import BY_NAME


def arguments_without(technique: str) -> list[str]:
    """Return the arguments that disable a technique."""
    return ["--set", f"{BY_NAME[technique].option}=false"]


def main() -> None:
    """Disable the technique and exec the other program."""
    technique, script, *arguments = sys.argv[1:]
    program = str(Path(__file__).resolve().parent / script)
    sys.argv = [program, *arguments, *arguments_without(technique)]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
