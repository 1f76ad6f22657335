"""Build the documentation as a site, which opens in a browser without a network.

    python docs/make_site.py [--into FOLDER]

Every warning fails the build: a broken link or anchor, a page outside the navigation, a docstring that does not parse.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from sphinx.cmd.build import build_main  # noqa: E402  # the same
from website import api_pages, staging  # noqa: E402  # needs the path set above


def main(argv: Sequence[str] | None = None) -> int:
    """Build the site, and return 1 if a page is faulty."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--into", type=Path, default=ROOT / "build/site", metavar="FOLDER", help="folder of the site")
    into = parser.parse_args(argv).into.resolve()
    with tempfile.TemporaryDirectory(prefix="rlcore-site-") as staged:
        staging.write(Path(staged))
        api_pages.write(Path(staged) / "api")
        failed = render(Path(staged), into)
    print("the site has faults, see above" if failed else f"the site: {into / 'index.html'}")
    return failed


def render(pages: Path, into: Path) -> int:
    """Turn a folder of pages into HTML, and return 1 if Sphinx warns of anything."""
    shutil.rmtree(into, ignore_errors=True)
    settings = ["-c", str(ROOT / "docs/website"), "-d", str(pages / ".doctrees")]
    return build_main(["-q", "-b", "html", "-W", "--keep-going", *settings, str(pages), str(into)])


if __name__ == "__main__":
    sys.exit(main())
