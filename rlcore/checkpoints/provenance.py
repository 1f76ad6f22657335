"""Say which plugins a run uses, and which of those a checkpoint was written with are other or missing now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.checkpoints.checkpoint import list_checkpoints
from rlcore.checkpoints.manifest import read_manifest
from rlcore.checkpoints.run_folder import AUTO, NEVER
from rlcore.errors import CheckpointError, DataError, InputsError, UnknownComponent
from rlcore.plugins.discovery import Plugin
from rlcore.plugins.registry import all_registries
from rlcore.settings import RunConfig


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each dist that brought one of the plugins `names`, which are `dist:entry-point`."""
    dists = {name.partition(":")[0] for name in names}
    return {plugin.dist: plugin.version for plugin in all_registries().discovery.plugins if plugin.dist in dists}


def compare_plugins(manifest: Mapping[str, Any], plugins: Sequence[Plugin] | None = None) -> list[str]:
    """Say in one line each which plugins a checkpoint was written with that are other, missing or left out now.

    Args:
        manifest: a checkpoint's; its `plugins` maps each dist to its version.
        plugins: what is installed; what this process found where left out.
    """
    plugins = all_registries().discovery.plugins if plugins is None else plugins
    now = {plugin.dist: plugin.version for plugin in plugins}
    return [
        *_unavailable(manifest, plugins),
        *(
            f"the checkpoint was written with {dist} {version}, and {now[dist]} is installed now"
            for dist, version in sorted(manifest.get("plugins", {}).items())
            if now.get(dist, version) != version
        ),
    ]


def _unavailable(manifest: Mapping[str, Any], plugins: Sequence[Plugin]) -> list[str]:
    lines = []
    for dist, version in sorted(manifest.get("plugins", {}).items()):
        found = [plugin for plugin in plugins if plugin.dist == dist]
        left_out = [plugin for plugin in found if not plugin.is_loaded]
        written = f"the checkpoint was written with {dist} {version}"
        if not found:
            lines.append(f"{written}, which is not installed: pip install {dist}=={version}")
        elif left_out:
            lines.append(f"{written}, which is {left_out[0].state} now: {left_out[0].reason}")
    return lines


@contextmanager
def explain_missing_plugins(run: RunConfig) -> Iterator[None]:
    """Have an error about a name or input say which plugins the checkpoint to be resumed needs and does not find.

    Raises:
        UnknownComponent, InputsError, DataError: what the block raises of these, with the advice below.
    """
    try:
        yield
    except (UnknownComponent, InputsError, DataError) as error:
        lines = _unavailable(_peek(run), all_registries().discovery.plugins)
        if not lines:
            raise
        raise type(error)("\n".join([str(error), *(f"  {line}" for line in lines)])) from error


def _peek(run: RunConfig) -> dict[str, Any]:
    """Read the manifest of the checkpoint to be resumed, its files unverified; empty where there is none."""
    if run.resume == NEVER or (run.resume == AUTO and run.name is None):
        return {}
    if run.resume == AUTO:
        candidates = list_checkpoints(Path(run.root) / str(run.name) / "checkpoints")[::-1]
    else:
        candidates = [Path(run.resume)]
    for path in candidates:
        try:
            return read_manifest(path)
        except CheckpointError:  # said when it is opened
            continue
    return {}
