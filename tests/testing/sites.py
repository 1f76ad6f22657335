"""Folders of installed dists, made on the spot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.plugins.discovery import discover
from rlcore.plugins.registry import all_registries
from rlcore_testing import Subject

METADATA = """\
Metadata-Version: 2.4
Name: {dist}
Version: {version}
Summary: A plugin made for a test
License-Expression: Apache-2.0
Requires-Python: >=3.11
"""


class Site:
    """A folder of installed dists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.modules: list[str] = []

    def install(
        self,
        dist: str,
        files: Mapping[str, str] | None = None,
        *,
        entry: str,
        version: str = "0.3",
        requires: tuple[str, ...] = ("rlcore>=0.1,<0.2",),
        metadata: str = METADATA,
    ) -> None:
        """Write `files` (path → text) and the metadata of a dist that has them; `entry` is its entry point's value."""
        written = files or {}
        for path, text in written.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text, encoding="utf-8")
        self.modules += [path.partition("/")[0].removesuffix(".py") for path in written]
        self.forget()  # what a test elsewhere may have left behind
        info = self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [metadata.format(dist=dist, version=version).rstrip(), *(f"Requires-Dist: {line}" for line in requires)]
        (info / "METADATA").write_text("\n".join([*lines, ""]), encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[rlcore]\nmain = {entry}\n", encoding="utf-8")
        record = [*written, f"{info.name}/METADATA", f"{info.name}/entry_points.txt", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in record), encoding="utf-8")

    def subject(self, dist: str) -> Subject:
        """Load a dist of this folder and make it the subject of a law about dists."""
        found = discover(environ={}, path=[str(self.folder)]).plugins
        return Subject(dist, tuple(plugin for plugin in found if plugin.dist == dist))

    def forget(self) -> None:
        """Drop the modules of this folder, so that another test may bring others of their names."""
        for name in [name for name in sys.modules if name.partition(".")[0] in self.modules]:
            del sys.modules[name]


def wrong(kind: str, name: str, *, sections: Mapping[str, Any] | None = None, **options: Any) -> Subject:
    """Make the component `name` of `acme-wrong` the subject of a law; needs the fixture `wrong_site`."""
    component = getattr(all_registries(), kind).get(f"acme-wrong:{name}")
    plugins = tuple(plugin for plugin in all_registries().discovery.plugins if plugin.dist == "acme-wrong")
    return Subject("acme-wrong", plugins, component, options, sections or {})


def installed(kind: str, name: str, **options: Any) -> Subject:
    """Make any installed component the subject of a law: `installed("trainers", "rlcore-sft:sft")`."""
    component = getattr(all_registries(), kind).get(name)
    plugins = tuple(plugin for plugin in all_registries().discovery.plugins if plugin.dist == component.dist)
    return Subject(component.dist, plugins, component, options)
