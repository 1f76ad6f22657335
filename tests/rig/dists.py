"""Installed dists generated for a test, and processes with these dists on their path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
from rlcore import hookimpl

@hookimpl
def register_trainers(register):
    register("{name}", "json:dumps")
"""


class Site:
    """Folder of installed dists, and processes with the folder on their path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.elsewhere = folder / "elsewhere"
        self.folder.mkdir(parents=True)
        self.elsewhere.mkdir()

    def install(
        self,
        dist: str,
        source: str | None = None,
        *,
        version: str = "0.3",
        requires: tuple[str, ...] = (),
        entry_points: str | None = None,
        folder: Path | None = None,
    ) -> None:
        folder = folder or self.folder
        folder.mkdir(exist_ok=True)
        module = dist.replace("-", "_") + "_plugin"
        if source is not None:
            (folder / f"{module}.py").write_text(source)
        info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {dist}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), ""]))
        (info / "entry_points.txt").write_text(entry_points or f"[rlcore]\nmain = {module}\n")

    def python(
        self, *arguments: str, path: tuple[Path, ...] = (), cwd: Path | None = None, **switches: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RLCORE_")}
        search = os.pathsep.join(map(str, [self.folder, *path, ROOT]))
        return subprocess.run(
            [sys.executable, *arguments],
            env={**kept, "PYTHONPATH": search, **switches},
            cwd=cwd or self.elsewhere,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def plugins(self, **options: Any) -> dict[str, dict[str, Any]]:
        done = self.python("-m", "rlcore", "list-plugins", "--json", **options)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        self.notes: list[str] = document["notes"]
        listed = [plugin for plugin in document["plugins"] if not plugin["dist"].startswith("rlcore-")]
        assert len({plugin["dist"] for plugin in listed}) == len(listed)
        return {plugin["dist"]: plugin for plugin in listed}


def state_of(plugin: Mapping[str, Any]) -> tuple[str, str]:
    return plugin["state"], plugin["reason"]
