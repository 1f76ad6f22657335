"""The plan for several devices as text."""

from __future__ import annotations

from collections.abc import Sequence

from rlcore_plan.cluster import PHASES, Cluster, growing
from rlcore_plan.layout import Placement
from rlcore_plan.sizes import write_count, write_size
from rlcore_plan.step_memory import Measured

NOT_RUN = (
    "no GPU, no NCCL and no second machine has run any of this: bytes are arithmetic that was checked against runs on "
    "CPUs, times are arithmetic alone"
)


def write_cluster(cluster: Cluster) -> str:
    """Return the tables of memory, traffic, time and efficiency."""
    layout = cluster.chosen
    machines = f"{write_count(layout.nodes, 'machine')} of {write_count(layout.per_node, 'device')}"
    lines = [f"{machines} with {write_size(cluster.limit)} each: what a rank holds at most"]
    lines += _table([["", *PHASES, "fits"], *(_memory_row(cluster, *each) for each in cluster.options)])
    lines += ["> is the strategy of this run"]
    taken = cluster.time(layout)
    lines += ["", f"a round with {layout.option}: what a device sends"]
    rows = [["", "within its machine", "to others", "meanwhile"]]
    rows += [
        [f"  {each.purpose}", _bytes(each.inside), _bytes(each.between),
         "it computes" if each.hidden else "it waits"]
        for each in taken.traffic
    ]  # fmt: skip
    lines += _table(rows) if taken.traffic else ["  nothing"]
    lines += ["", f"a round with {layout.option}: {write_seconds(taken.total)}"]
    lines += _table([[f"  {name}", write_seconds(each)] for name, each in taken.seconds.items() if each])
    work, engines = cluster.work, cluster.found.raw.engines
    if engines is not None and work.sampled and not engines.is_timed:
        lines.append("  without sampling, whose devices are not known or CPUs")
    elif work.ahead and not taken.seconds["sampling"]:
        lines.append("  sampling takes no longer than the policy learns meanwhile")
    tokens = (work.prompt + work.new) * work.sampled or sum(work.learned)
    lines.append(f"  {tokens * layout.world / taken.total:,.0f} tokens a second on all devices")
    lines += ["", *_assumptions(cluster), ""]
    lines += ["share of a round in which devices compute, with the rows of a device unchanged", *_growth(cluster)]
    lines += ["(in brackets: does not fit in a device)"]
    if engines is not None:
        lines.append("(devices of processes, which wait while others sample for them; these grow in proportion)")
    lines += ["", f"note: {NOT_RUN}"]
    return "\n".join(lines)


def _memory_row(cluster: Cluster, layout: Placement, measured: Measured) -> list[str]:
    by_name = {phase.name: phase.taken for phase in measured.phases}
    cells = [write_size(by_name[name]) if name in by_name else "-" for name in PHASES]
    most = measured.worst.taken + cluster.found.baseline
    over = most - cluster.limit
    fits = "yes" if over <= 0 else f"no: {measured.worst.name} {write_size(over)} too much"
    if measured.host:
        fits += f", and {write_size(measured.host)} of the CPU's memory"
    return [f"{'>' if layout == cluster.chosen else ' '} {layout.option}", *cells, fits]


def _assumptions(cluster: Cluster) -> list[str]:
    rates, work = cluster.rates, cluster.work
    rows, tokens = len(work.learned), sum(work.learned)
    assumed = [
        ("--peak-flops", f"{rates.peak_flops / 1e12:g} TFLOP/s of a device, in bfloat16"),
        ("--utilisation", f"{100 * rates.utilisation:g} % of them in matrix products"),
        ("--memory-bandwidth", f"{rates.memory_bandwidth / 1e9:g} GB/s"),
        ("--intra-bandwidth", f"{rates.intra_bandwidth / 1e9:g} GB/s from a device within its machine"),
        ("--inter-bandwidth", f"{rates.inter_bandwidth / 1e9:g} GB/s from a device to other machines"),
        ("--overlap", f"{100 * rates.overlap:g} % of an exchange hidden where computation goes on meanwhile"),
    ]
    if (engines := cluster.found.raw.engines) is not None and engines.sent:
        assumed.append(("", "weights pass to samplers at --inter-bandwidth, one copy after another"))
    lines = [f"assumed: {rows} rows of {tokens} tokens in all on a device in {_steps(work.steps)}"]
    return [*lines, *(f"  {option:<20}{text}" for option, text in assumed)]


def _steps(number: int) -> str:
    return "one optimizer step" if number == 1 else f"each of {number} optimizer steps"


def _bytes(size: float) -> str:
    return write_size(round(size)) if size else "-"


def _growth(cluster: Cluster) -> list[str]:
    rows = [["devices", *(each.option.replace("run.shard", "").strip("=").replace(" _within=", ", ")
                          for each, _ in cluster.options)]]  # fmt: skip
    for devices, cells in growing(cluster):
        rows.append([f"{devices:,}", *(_share(*each) for each in cells)])
    return _table(rows)


def _share(share: float | None, fits: bool) -> str:
    if share is None:
        return "-"
    text = f"{100 * share:.1f} %"
    return text if fits else f"({text})"


def write_seconds(seconds: float) -> str:
    """Return a time as text."""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns, the first on the left and the others on the right; the last is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
