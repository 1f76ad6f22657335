"""Let a run begin only where all its processes have the same plugins, and say what is remarkable about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcore.errors import RanksError
from rlcore.logging import get_logger
from rlcore.plugins.discovery import Discovery, Plugin

if TYPE_CHECKING:
    from rlcore.ranks import Ranks

log = get_logger("plugins")
_said: set[str] = set()


def agree_on_plugins(ranks: Ranks, discovery: Discovery) -> None:
    """Compare the plugins of all processes, and log what a user should know of them, once in a process.

    Raises:
        RanksError: on every rank, where a rank has other plugins than rank 0.
    """
    if ranks.world > 1:
        lists = ranks.gather([[_describe(plugin) for plugin in discovery.plugins]])
        other = [rank for rank, found in enumerate(lists) if _compared(found) != _compared(lists[0])]
        if other:
            raise RanksError(_explain(lists, other))
    remarks = (f"{plugin}: {remark}" for plugin in discovery.plugins for remark in plugin.remarks)
    for line in (*discovery.notes, *remarks):
        if line not in _said:
            _said.add(line)
            log.warning(line)


def _describe(plugin: Plugin) -> tuple[str, str]:
    """Spell a plugin for comparison, and say besides why it is not loaded, which alone makes no difference."""
    name = f"{plugin} ({plugin.name})"
    return name, "" if plugin.is_loaded else f"{plugin.state}, {plugin.reason}"


def _compared(found: Sequence[tuple[str, str]]) -> set[tuple[str, bool]]:
    """Return what must be the same: a heavy plugin is one like any other, and who sees it as heavy may differ."""
    return {(name, bool(reason)) for name, reason in found}


def _explain(lists: Sequence[Sequence[tuple[str, str]]], other: Sequence[int]) -> str:
    rank = other[0]
    lines = [f"rank {', '.join(map(str, other))} has other plugins than rank 0; every rank must have the same"]
    for here, there in ((0, rank), (rank, 0)):
        own = [one for one in lists[here] if (one[0], bool(one[1])) not in _compared(lists[there])]
        lines.append(f"  on rank {here} only: {', '.join(map(_show, own)) or 'nothing'}")
    loaded = {each: ", ".join(name for name, reason in lists[each] if not reason) for each in (0, rank)}
    lines += [f"  rank {each} has: {names}" for each, names in loaded.items()]
    return "\n".join([*lines, "  see on each machine: rlcore list-plugins"])


def _show(one: tuple[str, str]) -> str:
    name, reason = one
    return f"{name}: {reason}" if reason else name
