"""Generate the reference pages of the documentation from the code.

    python docs/generate.py [--check] [--into FOLDER]

With --check nothing is written; pages that are out of date are listed, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from generators import arguments, configuration, conformance, errors, hooks, houses, protocols, run  # noqa: E402  # needs the path set above

GENERATORS = (arguments, configuration, hooks, protocols, run, errors, conformance, houses)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description="Generate the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("--into", type=Path, default=DOCS, metavar="FOLDER", help="folder of the documentation")
    arguments = parser.parse_args(argv)
    pages = {path: text for generator in GENERATORS for path, text in generator.pages().items()}
    stale = [path for path, text in pages.items() if _read(arguments.into / path) != text]
    # Pages of removed hooks or protocols are out of date too.
    folders = {Path(path).parent for path in pages} - {Path()}
    there = {
        page.relative_to(arguments.into).as_posix() for at in folders for page in arguments.into.glob(f"{at}/*.md")
    }
    left = sorted(there - pages.keys())
    if arguments.check:
        for path in [*stale, *left]:
            print(f"{path} is out of date: run `make docs`")
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
