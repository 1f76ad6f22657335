"""What samples elsewhere, as lines of the report and as JSON."""

from __future__ import annotations

from typing import Any

from rlcore_plan.engines import Engines
from rlcore_plan.sizes import write_count, write_size


def line(name: str, size: int) -> str:
    """Return a line of the report: a purpose and its bytes."""
    return f"  {name:<52}{write_size(size):>10}"


def write_engines(engines: Engines) -> list[str]:
    """Return the lines of what samples elsewhere."""
    serving = engines.serving
    if not serving.engines:
        return [f"sampler '{engines.name}': its model and its devices are not part of the plan"]
    copies = "one copy" if serving.engines == 1 else f"{serving.engines} copies"
    lines = [f"sampler '{engines.name}': {copies} of the weights, {_where(engines)}"]
    lines.append(line("weights of one", engines.weights))
    if engines.row and engines.rows:
        rows = f"of {engines.at_once} of its {write_count(engines.rows, 'row')}"
        lines.append(line(f"keys and values {rows} at once", engines.at_once * engines.row))
    lines.append(line("needed of each of its devices", engines.needed))
    if engines.share:
        lines.append(line(f"taken of each, a share of {engines.share:g}", engines.taken))
    if engines.missing:
        lines.append(line("too much for each: give it more devices", engines.missing))
    if serving.sleeps:
        lines.append(line("in the CPU's memory while it sleeps", engines.weights))
    if serving.host_copy:
        lines.append(line("in the CPU's memory, a further copy of the policy", engines.sent))
    if serving.keeps:
        lines.append(line("in the CPU's memory of process 0, a copy to send", engines.sent))
    lines.append(line("passed on by process 0 in each round", engines.sent))
    lines.append(line(f"read by samplers, {write_count(engines.copies, 'time')}", engines.sent * engines.copies))
    return lines


def _where(engines: Engines) -> str:
    serving, devices = engines.serving, write_count(engines.devices, "device")
    if serving.devices == 0:
        return "on CPUs"
    if engines.is_shared:
        return f"on {devices} that processes of the run use too" + ", asleep while the policy learns" * serving.sleeps
    if serving.devices is None:
        return f"on devices of their own, assumed: {devices} for each" if engines.memory else "on devices of their own"
    if serving.numbers is not None:
        every = engines.world + engines.devices
        share = f"{100 * engines.devices / every:.0f} %"
        return f"on {devices} of its own, {share} of {every}; the run's processes have the rest"
    return f"on {devices} of its own" if serving.engines == 1 else f"on {devices} of its own for each"


def engines_as_json(engines: Engines) -> dict[str, Any]:
    """Return what samples elsewhere as an object of JSON, sizes in bytes."""
    return {
        "sampler": engines.name,
        "copies": engines.serving.engines,
        "weights": engines.weights,
        "rows": engines.rows,
        "rows_at_once": engines.at_once,
        "row": engines.row,
        "devices_of_each": engines.serving.devices,
        "devices_assumed": engines.devices,
        "shared": engines.is_shared,
        "sleeps": engines.serving.sleeps,
        "needed": engines.needed,
        "missing": engines.missing,
        "taken": engines.taken,
        "sent": engines.sent,
        "read": engines.sent * engines.copies,
    }
