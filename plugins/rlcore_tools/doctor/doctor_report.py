"""The text form of the report of `rlcore doctor`, to read and to paste into a bug report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlcore_tools.doctor.machine import GIB

DoctorReport = Mapping[str, Any]


def write_report(report: DoctorReport) -> str:
    """Return the text of everything except torch's devices and the problems."""
    parts = [_columns(_machine(report)), "", *_packages(report), "", *_plugins(report), "", *_environment(report), ""]
    return "\n".join(parts)


def write_torch(torch: DoctorReport) -> str:
    """Return one line about torch: version, build, threads and devices."""
    if "failed" in torch:
        return f"torch: {torch['failed']}"
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "the CPU only"
    devices = ", ".join(torch["devices"]) or "none"
    return f"torch: {torch['version']}, built for {built}, {torch['threads']} threads; devices: {devices}"


def write_problems(problems: Sequence[str]) -> str:
    """Return the text of the list of problems, `none found` if it is empty."""
    return "\n".join(["problems", *(f"  {line}" for line in problems or ("none found",))])


def _machine(report: DoctorReport) -> Iterator[tuple[str, str]]:
    system, cores, memory, accelerators = (report[key] for key in ("system", "cores", "memory", "accelerators"))
    place = ", in a virtual environment" if system["virtual_environment"] else ""
    quota = "" if cores["quota"] is None else f", limited to {cores['quota']:g}"
    yield "rlcore", report["rlcore"]
    yield "python", f"{system['python']} ({system['implementation']}{place})"
    yield "system", f"{system['system']} {system['machine']}"
    yield "cores", f"{cores['allowed']} of {cores['present']}{quota}"
    if memory:
        yield "memory", f"{memory['total'] / GIB:.1f} GiB, {memory['free'] / GIB:.1f} free"
    yield "accelerators", f"{'; '.join(accelerators['seen']) or 'none found'} ({accelerators['source']})"
    if report["torch"] is None:
        yield "", "devices of torch: rlcore doctor --devices"
    for disk in report["disks"]:
        free = "" if disk["free"] is None else f", {disk['free'] / GIB:.1f} GiB free"
        yield disk["what"], f"{disk['path']}: {'writable' if disk['writable'] else disk['error']}{free}"
    if report["config"]:
        yield "configuration", f"{report['config']['file']}, {len(report['config']['errors']) or 'no'} errors"


def _packages(report: DoctorReport) -> Iterator[str]:
    own = [row for row in report["packages"] if row["dist"].startswith("rlcore ") or not row["dist"]]
    always = [row for row in own if not row["extra"]]
    yield "packages"
    yield _columns((row["name"], row["installed"] or "not installed", row["required"]) for row in always)
    yield from ("", "optional packages")
    extras = [row for row in own if row["extra"]]
    yield _columns(
        (row["name"], row["installed"] or "not installed", row["required"], f"rlcore[{row['extra']}]") for row in extras
    )


def _plugins(report: DoctorReport) -> Iterator[str]:
    yield "plugins"
    rows: list[tuple[str, ...]] = []
    for plugin in report["plugins"]:
        components = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in plugin["components"].items())
        rows.append((plugin["dist"], plugin["version"], plugin["state"], components))
        rows += [("", "", "", line) for line in (plugin["reason"], *plugin.get("remarks", ())) if line]
    yield _columns(rows)


def _environment(report: DoctorReport) -> Iterator[str]:
    yield "environment"
    yield from (f"  {name}={value}" for name, value in report["environment"].items())
    if not report["environment"]:
        yield "  none of the variables that affect rlcore is set"


def _columns(rows: Iterable[Sequence[str]]) -> str:
    """Align rows in columns, each as wide as its widest cell; the last column is not padded."""
    table = [list(row) for row in rows]
    widths: dict[int, int] = {}
    for row in table:
        for i, cell in enumerate(row[:-1]):
            widths[i] = max(widths.get(i, 0), len(cell))
    lines = ("  ".join(f"{cell:<{widths.get(i, 0)}}" for i, cell in enumerate(row)).rstrip() for row in table)
    return "\n".join(f"  {line}" for line in lines)
