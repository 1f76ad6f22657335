"""Versions of the plugins that a run uses, and their comparison with those of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlcore.checkpoints.checkpoint import list_checkpoints
from rlcore.checkpoints.manifest import read_manifest
from rlcore.checkpoints.run_folder import AUTO, NEVER
from rlcore.errors import CheckpointError, ConfigError, DataError, InputsError, UnknownComponent
from rlcore.plugins.discovery import Plugin
from rlcore.plugins.registry import all_registries
from rlcore.settings import RunConfig


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each dist that provides one of the plugins `names` (`dist:entry-point`)."""
    dists = {name.partition(":")[0] for name in names}
    return {plugin.dist: plugin.version for plugin in all_registries().discovery.plugins if plugin.dist in dists}


def compare_plugins(manifest: Mapping[str, Any], plugins: Sequence[Plugin] | None = None) -> list[str]:
    """Return one line for each plugin of a checkpoint that is now missing, not loaded or of another version.

    Args:
        manifest: the manifest of the checkpoint; its `plugins` maps each dist to its version.
        plugins: the installed plugins; by default those that this process discovered.
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
    """Return a line for all plugins of a checkpoint that are not installed, and one for each that is not loaded."""
    written = sorted(manifest.get("plugins", {}).items())
    states = {dist: [plugin for plugin in plugins if plugin.dist == dist] for dist, _ in written}
    missing = [(dist, version) for dist, version in written if not states[dist]]
    lines = []
    if missing:
        names = " and ".join(f"{dist} {version}" for dist, version in missing)
        pins = " ".join(f"{dist}=={version}" for dist, version in missing)
        verb = "is" if len(missing) == 1 else "are"
        lines.append(f"the checkpoint was written with {names}, which {verb} not installed: pip install {pins}")
    lines += [
        f"the checkpoint was written with {dist} {version}, which is {plugin.state} now: {plugin.reason}"
        for dist, version in written
        for plugin in [plugin for plugin in states[dist] if not plugin.is_loaded][:1]
    ]
    return lines


@contextmanager
def explain_missing_plugins(run: RunConfig) -> Iterator[None]:
    """Begin an error about names, options or inputs with the plugins of the resumed checkpoint that are missing.

    Raises:
        UnknownComponent, InputsError, DataError, ConfigError: the error of the block, after one line for all plugins
            that are not installed, and one for each that is not loaded.
    """
    try:
        yield
    except (UnknownComponent, InputsError, DataError, ConfigError) as error:
        lines = _unavailable(_peek(run), all_registries().discovery.plugins)
        if not lines:
            raise
        raise type(error)("\n".join([*lines, str(error)])) from error


def _peek(run: RunConfig) -> dict[str, Any]:
    """Read the manifest of the checkpoint to resume, without verifying its files; empty if there is none."""
    if run.resume == NEVER or (run.resume == AUTO and run.name is None):
        return {}
    candidates: list[Path] = []
    if run.resume == AUTO:
        with suppress(CheckpointError):  # raised again when the run is claimed
            candidates = list_checkpoints(Path(run.root) / str(run.name) / "checkpoints")[::-1]
    else:
        candidates = [Path(run.resume)]
    for path in candidates:
        try:
            return read_manifest(path)
        except CheckpointError:  # raised again when it is opened
            continue
    return {}
