"""The check that all processes of a run have the same plugins, and warnings about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcore.errors import RanksError
from rlcore.logging import get_logger
from rlcore.plugins.discovery import Discovery, Plugin

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
        lines.append(f"  on rank {here} only: {', '.join(map(_show, own)) or 'nothing'}")
    loaded = {each: ", ".join(name for name, reason in lists[each] if not reason) for each in (0, rank)}
    lines += [f"  rank {each} has: {names}" for each, names in loaded.items()]
    return "\n".join([*lines, "  see on each machine: rlcore list-plugins"])


def _show(one: tuple[str, str]) -> str:
    name, reason = one
    return f"{name}: {reason}" if reason else name
