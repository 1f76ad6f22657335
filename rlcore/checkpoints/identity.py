"""The identity of a run: what it trains on and with, recorded in every checkpoint and compared when a run is resumed.

An identity maps dotted names, such as `gen.temperature` or `data.prompts`, to plain values. `run.accept_changes` lists
the names of values that may differ; a name also covers the names below it (`trainer` covers `trainer.optimizer.lr`).
The versions of plugins are recorded beside it; a difference is a warning.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from rlcore.checkpoints.checkpoint import Checkpoint, list_checkpoints
from rlcore.checkpoints.manifest import read_manifest
from rlcore.checkpoints.run_folder import AUTO, NEVER
from rlcore.config.options import to_plain
from rlcore.config.yaml_files import path_named
from rlcore.errors import CheckpointError, ConfigError, DataError, InputsError, UnknownComponent
from rlcore.logging import get_logger
from rlcore.plugins.discovery import Plugin
from rlcore.plugins.registry import all_registries
from rlcore.safe_text import shorten
from rlcore.settings import RunConfig

FIELD, ACCEPTED, PROCESSES = "identity", "accepted_changes", "changed_processes"
"""Fields of a manifest: the identity of the run, all changes that were accepted since its beginning, and all changes of
the number of processes."""
TRAINER = "trainer.name"
OPTIONS = ("trainer", "model", "gen", "sampler")
"""Sections whose options belong to plugins: another version of a plugin may add or remove options."""
ABSENT = "not there"
TIME, TIME_VARIABLES = "rendered_time", "rendered_time_variables"
"""Names below `data` of the time that the chat template renders, and of the variables that can replace it. They are not
compared, because a template may leave the time out, and explain why rows are others."""
NOT_COMPARED = (f"data.{TIME}", f"data.{TIME_VARIABLES}")
"""Names that are not compared, because they only explain."""
ROWS = ("data.prompts", "data.samples", "data.eval_prompts", "data.eval_samples")
"""Names of rows, which may be rendered with the chat template."""
FIXED = "run.seed"
"""What no resumed run can change, because random numbers and the order of rows go on from the checkpoint's."""
NOT_EXACT = "dropout, or the sampler, draws other random numbers than without the change"

log = get_logger("resume")


@attrs.frozen
class _Change:
    name: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} was {shorten(self.was)}, is {shorten(self.now)}"


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping from dotted names to plain values."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: to_plain(value)}
    return flat


def check_identity(
    identity: Mapping[str, object], checkpoint: Checkpoint | None, *, accept: Sequence[str], plugins: Mapping[str, str]
) -> dict[str, object]:
    """Compare the identity of a run with that of the checkpoint it resumes from.

    Args:
        identity: plain values by dotted name.
        checkpoint: None if the run starts at step 0; then only `accept` is checked.
        accept: names of the values that may differ (`run.accept_changes`).
        plugins: versions of the run's dists. An option that only one of both runs has is no change if the versions
            differ: it causes a warning.

    Returns:
        The identity and all accepted changes so far, as fields for the manifests of the run.

    Raises:
        CheckpointError: the checkpoint was written by another trainer.
        ConfigError: values differ that `accept` does not name, or that cannot change.
    """
    then = identity if checkpoint is None else _recorded(checkpoint, identity)
    _warn_of_names(accept, [*identity, *then])
    if checkpoint is None:
        return {FIELD: dict(identity), ACCEPTED: []}
    changes = [
        _Change(name, then.get(name, ABSENT), identity.get(name, ABSENT))
        for name in sorted((then.keys() | identity.keys()) - set(NOT_COMPARED))
        if then.get(name, ABSENT) != identity.get(name, ABSENT)
    ]
    if checkpoint.manifest.get("plugins") != plugins:
        changes = _without_new_options(changes)
    refused = [change for change in changes if change.name == FIXED or not _is_covered(change.name, accept)]
    if refused:
        raise ConfigError(
            f"{checkpoint.path} was written by a run with other values: {'; '.join(map(str, refused))}. "
            f"{_describe_time(refused, checkpoint.manifest.get(FIELD, {}), identity)}Resume with the original ones, "
            f"{_how_to_accept(refused)}or start a new run from {checkpoint.path / 'model'}"
        )
    for change in changes:
        log.warning("accepted a change", name=change.name, was=change.was, now=change.now)
    earlier = list(checkpoint.manifest.get(ACCEPTED, []))
    accepted = [{"step": checkpoint.step, **attrs.asdict(change)} for change in changes]
    return {FIELD: dict(identity), ACCEPTED: earlier + accepted}


def _describe_time(refused: Sequence[_Change], then: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return why rows are others if their conversations are rendered with another time than then; else nothing."""
    was, is_ = then.get(f"data.{TIME}"), now.get(f"data.{TIME}")
    rows = [each.name for each in refused if each.name in ROWS]
    if was is None or is_ is None or was == is_ or not rows:
        return ""
    name = str(now.get(f"data.{TIME_VARIABLES}") or "").partition(",")[0]
    how = f" (it is the variable {name}: data.chat_template_options={{{name}: {was!r}}})" if name else ""
    return (
        f"The chat template renders the time, which was {was!r} then and is {is_!r} now, so that {' and '.join(rows)} "
        f"may have other tokens though the data is the same{how}. "
    )


def _how_to_accept(refused: Sequence[_Change]) -> str:
    """Return how a run continues with other values, and which one it cannot change, as parts of a sentence."""
    names = [each.name for each in refused if each.name != FIXED]
    these = "these" if len(names) == len(refused) else f"other {', '.join(names)}"
    how = f"continue with {these} by run.accept_changes=[{','.join(names)}], " if names else ""
    reason = f"({FIXED} cannot change: random numbers and the order of rows go on from the checkpoint's) "
    return how if len(names) == len(refused) else f"{reason}{how}"


def record_processes(checkpoint: Checkpoint | None, world: int, *, is_exact: bool) -> dict[str, object]:
    """Return all changes of the number of processes so far, as a field for the manifests of the run.

    Args:
        checkpoint: the one that the run resumes from; None if it starts at step 0.
        world: the number of processes.
        is_exact: whether the run learns the same on any number of processes.
    """
    changes = [] if checkpoint is None else list(checkpoint.manifest.get(PROCESSES, []))
    was = world if checkpoint is None else checkpoint.manifest.get("world", world)
    if checkpoint is not None and was != world:
        changes.append({"step": checkpoint.step, "was": was, "now": world, "is_exact": is_exact})
        event = "resumed on another number of processes"
        if is_exact:
            log.info(event, was=was, now=world)
        else:
            log.warning(event, was=was, now=world, note=NOT_EXACT)
    return {PROCESSES: changes}


def _recorded(checkpoint: Checkpoint, identity: Mapping[str, object]) -> Mapping[str, object]:
    """Return the identity in the checkpoint's manifest; the run's own if there is none, which compares nothing."""
    then: Mapping[str, object] | None = checkpoint.manifest.get(FIELD)
    if then is None:
        log.warning("the checkpoint does not record what its run trained on: nothing is compared", at=checkpoint.path)
        return identity
    if then.get(TRAINER) != identity.get(TRAINER):
        raise CheckpointError(
            f"{checkpoint.path} was written by trainer '{then.get(TRAINER)}', and '{identity.get(TRAINER)}' cannot "
            f"resume from it: set trainer.name to '{then.get(TRAINER)}', or start a new run from "
            f"{checkpoint.path / 'model'}"
        )
    return dict(then)


def _without_new_options(changes: Iterable[_Change]) -> list[_Change]:
    """Return the changes except options that another version of a plugin added or removed; these are logged."""
    kept = []
    for change in changes:
        if ABSENT in (change.was, change.now) and change.name.partition(".")[0] in OPTIONS:
            log.warning("another version of a plugin added or removed an option", change=str(change))
        else:
            kept.append(change)
    return kept


def _warn_of_names(accept: Sequence[str], names: Sequence[str]) -> None:
    """Log which of the names in `accept` are those of nothing that is compared, so that they accept no change."""
    known = {name[:end] for name in names for end in range(1, len(name) + 1) if name[end : end + 1] in ("", ".")}
    for name in accept:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(sorted(known - set(names)))}"
            log.warning("run.accept_changes: nothing that is compared has this name", name=name, hint=hint)


def _is_covered(name: str, accept: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in accept)


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


def _peek(run: RunConfig) -> dict[str, object]:
    """Read the manifest of the checkpoint to resume, without verifying its files; empty if there is none."""
    if run.resume == NEVER or (run.resume == AUTO and run.name is None):
        return {}
    candidates: list[Path] = []
    if run.resume == AUTO:
        with suppress(CheckpointError):  # raised again when the run is claimed
            candidates = list_checkpoints(path_named(run.root) / str(run.name) / "checkpoints")[::-1]
    else:
        candidates = [path_named(run.resume)]
    for path in candidates:
        try:
            return read_manifest(path)
        except CheckpointError:  # raised again when it is opened
            continue
    return {}
