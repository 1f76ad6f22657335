"""Checks, before the first step, that all processes of a run have the same plugins, configuration, model and data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from rlcore.checkpoints.fingerprints import fingerprint_parameters
from rlcore.checkpoints.identity import ABSENT, flatten
from rlcore.config.plain import to_json
from rlcore.errors import RanksError
from rlcore.logging import get_logger
from rlcore.plugins.discovery import Discovery, Plugin
from rlcore.ranks import Ranks
from rlcore.safe_text import shorten
from rlcore.settings import TrainConfig, to_record
from rlcore.training.inputs import DATA_INPUTS

if TYPE_CHECKING:
    from rlcore.ranks import Ranks


log = get_logger("plugins")
_logged: set[str] = set()


def agree_on_plugins(ranks: Ranks, discovery: Discovery) -> None:
    """Check that all processes have the same plugins, and log each warning about plugins once per process.

    Raises:
        RanksError: raised on every rank if the plugins of a rank differ from rank 0's.
    """
    if ranks.world > 1:
        lists = ranks.gather([[_describe(plugin) for plugin in discovery.plugins]])
        different = [rank for rank, plugins in enumerate(lists) if _identity(plugins) != _identity(lists[0])]
        if different:
            raise RanksError(_explain(lists, different))
    remarks = (f"{plugin}: {remark}" for plugin in discovery.plugins for remark in plugin.remarks)
    for line in (*discovery.notes, *remarks):
        if line not in _logged:
            _logged.add(line)
            log.warning(line)


def _describe(plugin: Plugin) -> tuple[str, str]:
    """Return the name of a plugin and why it is not loaded, empty if it is."""
    name = f"{plugin} ({plugin.name})"
    return name, "" if plugin.is_loaded else f"{plugin.state}, {plugin.reason}"


def _identity(plugins: Sequence[tuple[str, str]]) -> set[tuple[str, bool]]:
    """Return what must be equal on all ranks: which plugins are loaded, but not the reasons."""
    return {(name, bool(reason)) for name, reason in plugins}


def _explain(lists: Sequence[Sequence[tuple[str, str]]], different: Sequence[int]) -> str:
    rank = different[0]
    lines = [f"rank {', '.join(map(str, different))} has other plugins than rank 0; every rank must have the same"]
    for here, there in ((0, rank), (rank, 0)):
        own = [one for one in lists[here] if (one[0], bool(one[1])) not in _identity(lists[there])]
        lines.append(f"  on rank {here} only: {', '.join(map(_show_plugin, own)) or 'nothing'}")
    loaded = {each: ", ".join(name for name, reason in lists[each] if not reason) for each in (0, rank)}
    lines += [f"  rank {each} has: {names}" for each, names in loaded.items()]
    return "\n".join([*lines, "  see on each machine: rlcore list-plugins"])


def _show_plugin(one: tuple[str, str]) -> str:
    name, reason = one
    return f"{name}: {reason}" if reason else name


LOCAL = {"model.path", "model.tokenizer", "run.root", *(f"data.{name}" for name in DATA_INPUTS)}
"""Options that may differ from machine to machine: paths, whose contents are compared instead."""
REWARDS = "data.reward_fn."
"""Prefix of the reward functions in an identity; what is bound to them, such as a device, may differ."""
MODEL = "weights of the model in memory (seed torch before building it, or pass a folder)"
SHOWN = 8


def agree_on_configuration(ranks: Ranks, config: TrainConfig) -> None:
    """Check that every option is the same on all ranks, except for the names of folders and data sets.

    Raises:
        RanksError: raised on every rank; it names each option that differs, and its values.
    """
    options = flatten(to_record(config))
    kept = {name: value for name, value in options.items() if not any(_is_within(name, local) for local in LOCAL)}
    _agree(ranks, kept, "configuration")


def agree_on_weights(ranks: Ranks, model: Any) -> None:
    """Check that a model in memory has the same weights on all ranks, before the run copies or divides it.

    Weights in a folder are compared by `agree_on_identity`.

    Raises:
        RanksError: raised on every rank, with the digests that differ.
    """
    if ranks.world > 1:
        is_here = isinstance(model, nn.Module)
        _agree(ranks, {MODEL: fingerprint_parameters(model) if is_here else "not in memory"}, "model")


def agree_on_identity(ranks: Ranks, identity: Mapping[str, Any]) -> None:
    """Check that all ranks train the same model on the same rows: prompts, samples, rewards and evaluation data.

    Raises:
        RanksError: raised on every rank; it names the data that differ, their numbers of rows and their digests.
    """
    kept = {name: "" if name.startswith(REWARDS) else value for name, value in identity.items()}
    _agree(ranks, kept, "model or data")


def _agree(ranks: Ranks, values: Mapping[str, Any], what: str) -> None:
    if ranks.world == 1:
        return
    digest = hashlib.sha256(to_json(sorted(values.items())).encode("utf-8", "surrogatepass")).hexdigest()
    if len(set(ranks.gather([digest]))) == 1:
        return
    everyone = ranks.gather([dict(values)])
    first = everyone[0]
    different = {rank: _differences(first, each) for rank, each in enumerate(everyone) if each != first}
    if not different:
        return
    rank, names = next(iter(different.items()))
    lines = [
        f"  {name}: {_show(everyone[rank], name)} on rank {rank}, {_show(first, name)} on rank 0"
        for name in names[:SHOWN]
    ]
    more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    ranks_text = f"rank {', '.join(map(str, different))}"
    head = f"{ranks_text}: another {what} than rank 0; every process of a run must have the same"
    raise RanksError("\n".join([head, *lines, *more]))


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in first.keys() | other.keys() if first.get(name, ABSENT) != other.get(name, ABSENT))


def _show(values: Mapping[str, Any], name: str) -> str:
    return shorten(values.get(name, ABSENT))


def _is_within(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")
