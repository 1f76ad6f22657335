"""Write the pages of the documentation that say what the code says, so that they cannot disagree with it.

    python docs/generate.py [--check] [--into FOLDER]

With --check nothing is written; the exit code is 1, and the pages are named, if they are not what the code says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from generators import configuration, conformance, errors, hooks, protocols  # noqa: E402  # found in the folder just named

GENERATORS = (configuration, hooks, protocols, errors, conformance)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description="Write the pages that say what the code says.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    parser.add_argument("--into", type=Path, default=DOCS, metavar="FOLDER", help="folder of the documentation")
    arguments = parser.parse_args(argv)
    pages = {path: text for generator in GENERATORS for path, text in generator.pages().items()}
    stale = [path for path, text in pages.items() if _read(arguments.into / path) != text]
    # A page of something that is no longer there is as wrong as one that is missing.
    folders = {Path(path).parent for path in pages} - {Path()}
    there = {page.relative_to(arguments.into).as_posix() for at in folders for page in (arguments.into / at).glob("*")}
    left = sorted(there - pages.keys())
    if arguments.check:
        for path in [*stale, *left]:
            print(f"{path} is not what the code says: run `make docs`")
        return int(bool(stale or left))
    for path in stale:
        (arguments.into / path).parent.mkdir(parents=True, exist_ok=True)
        (arguments.into / path).write_text(pages[path], encoding="utf-8")
    for path in left:
        (arguments.into / path).unlink()
    return 0


def _read(page: Path) -> str | None:
    return page.read_text(encoding="utf-8") if page.exists() else None


if __name__ == "__main__":
    sys.exit(main())
