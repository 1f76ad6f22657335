"""Write what `rlcore.cli.doctor` found as text, to be read and to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlcore.cli.machine import GIB

Found = Mapping[str, Any]


def write_report(found: Found) -> str:
    """Write everything but what torch says and the problems, which may come later."""
    parts = [_columns(_machine(found)), "", *_packages(found), "", *_plugins(found), "", *_environment(found), ""]
    return "\n".join(parts)


def write_torch(asked: Found) -> str:
    """Write what torch says of its devices."""
    if "failed" in asked:
        return f"torch: {asked['failed']}"
    built = f"CUDA {asked['cuda']}" if asked["cuda"] else f"ROCm {asked['hip']}" if asked["hip"] else "the CPU only"
    devices = ", ".join(asked["devices"]) or "none"
    return f"torch: {asked['version']}, built for {built}, {asked['threads']} threads; devices: {devices}"


def write_problems(problems: Sequence[str]) -> str:
    """Write the problems, or that none was found."""
    return "\n".join(["problems", *(f"  {line}" for line in problems or ("none found",))])


def _machine(found: Found) -> Iterator[tuple[str, str]]:
    system, cores, memory, accelerators = (found[key] for key in ("system", "cores", "memory", "accelerators"))
    place = ", in a virtual environment" if system["virtual_environment"] else ""
    quota = "" if cores["quota"] is None else f", a share of {cores['quota']:g}"
    yield "rlcore", found["rlcore"]
    yield "python", f"{system['python']} ({system['implementation']}{place})"
    yield "system", f"{system['system']} {system['machine']}"
    yield "cores", f"{cores['allowed']} of {cores['present']}{quota}"
    if memory:
        yield "memory", f"{memory['total'] / GIB:.1f} GiB, {memory['free'] / GIB:.1f} free"
    yield "accelerators", f"{'; '.join(accelerators['seen']) or 'none seen'} ({accelerators['source']})"
    if found["torch"] is None:
        yield "", "torch was not asked for its devices: rlcore doctor --devices"
    for disk in found["disks"]:
        free = "" if disk["free"] is None else f", {disk['free'] / GIB:.1f} GiB free"
        yield disk["what"], f"{disk['path']}: {'writable' if disk['writable'] else disk['error']}{free}"
    if found["config"]:
        yield "configuration", f"{found['config']['file']}, {len(found['config']['errors']) or 'no'} errors"


def _packages(found: Found) -> Iterator[str]:
    own = [row for row in found["packages"] if row["dist"].startswith("rlcore ") or not row["dist"]]
    always = [row for row in own if not row["extra"]]
    yield "packages"
    yield _columns((row["name"], row["installed"] or "not installed", row["required"]) for row in always)
    yield from ("", "optional packages")
    extras = [row for row in own if row["extra"]]
    yield _columns(
        (row["name"], row["installed"] or "not installed", row["required"], f"rlcore[{row['extra']}]") for row in extras
    )


def _plugins(found: Found) -> Iterator[str]:
    yield "plugins"
    rows: list[tuple[str, ...]] = []
    for plugin in found["plugins"]:
        brought = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in plugin["components"].items())
        rows.append((plugin["dist"], plugin["version"], plugin["state"], brought))
        rows += [("", "", "", line) for line in (plugin["reason"], *plugin.get("remarks", ())) if line]
    yield _columns(rows)


def _environment(found: Found) -> Iterator[str]:
    yield "environment"
    yield from (f"  {name}={value}" for name, value in found["environment"].items())
    if not found["environment"]:
        yield "  none of the variables that rlcore heeds is set"


def _columns(rows: Iterable[Sequence[str]]) -> str:
    """Set rows side by side, each column as wide as its widest cell but the last."""
    table = [list(row) for row in rows]
    widths: dict[int, int] = {}
    for row in table:
        for i, cell in enumerate(row[:-1]):
            widths[i] = max(widths.get(i, 0), len(cell))
    lines = ("  ".join(f"{cell:<{widths.get(i, 0)}}" for i, cell in enumerate(row)).rstrip() for row in table)
    return "\n".join(f"  {line}" for line in lines)
