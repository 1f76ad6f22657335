"""A plan for several devices: every strategy's memory, and the traffic and time of a round, to many devices.

Also in this file: the plan for several devices as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from rlcore_tools.plan.estimate import Estimate
from rlcore_tools.plan.model_sizes import Matrices, matrices_of
from rlcore_tools.plan.sizes import TENSOR, WHOLE, Placement, Rates, every_layout, write_count, write_size
from rlcore_tools.plan.step_memory import Measured
from rlcore_tools.plan.wire import LARGEST, RENEWING, RoundTime, Work, larger, round_time, work_of

PHASES = ("start", "sampling", "update", "checkpoint")


@attrs.frozen
class Cluster:
    """A plan for several devices.

    Attributes:
        found: the estimate of the run.
        limit: bytes of a device.
        rates: the rates of the hardware.
        matrices: the model's matrices.
        work: what a device computes in a round.
        options: the strategies that the run could choose, each with the memory of a rank.
    """

    found: Estimate
    limit: int
    rates: Rates
    matrices: Matrices
    work: Work
    options: tuple[tuple[Placement, Measured], ...]

    @property
    def chosen(self) -> Placement:
        """Return the layout that the run chooses."""
        return self.found.layout

    def time(self, layout: Placement) -> RoundTime:
        """Return the time of a round, with as many rows on each device."""
        return round_time(self.found.raw, self.matrices, self.work, layout, self.rates)

    def efficiency(self, layout: Placement) -> float:
        """Return the share of a round in which the devices of ranks compute; they wait for what samples elsewhere."""
        taken = self.time(layout)
        waiting = ["exchange", RENEWING, *(["sampling"] if self.found.raw.engines else [])]
        return 1 - sum(taken.seconds.get(name, 0.0) for name in waiting) / taken.total

    def fits(self, layout: Placement) -> bool:
        """Return whether every phase of a rank fits in a device."""
        return self.found.under(layout).worst.taken + self.found.baseline <= self.limit


def plan_cluster(found: Estimate, limit: int, rates: Rates) -> Cluster:
    """Return the plan for the devices of an estimate.

    Args:
        found: the estimate.
        limit: bytes of a device.
        rates: the rates of the hardware.
    """
    layout = found.layout
    layouts = every_layout(layout.nodes, layout.per_node, is_float32=found.raw.sizes.is_float32)
    if layout not in layouts:
        layouts.append(layout)
    if found.raw.sizes.refusal or found.subject.settings.run.asynchronous:
        layouts = [each for each in layouts if each.strategy == WHOLE]
    options = tuple((each, found.under(each)) for each in layouts)
    return Cluster(found, limit, rates, matrices_of(found.subject), work_of(found.subject, found.raw), options)


def growing(cluster: Cluster) -> list[tuple[int, list[tuple[float | None, bool]]]]:
    """Return for each number of devices the efficiency of each strategy and whether it fits, to 1,024 devices.

    The efficiency of `tp` is None for other numbers than that of the run, whose parts of layers were measured.
    """
    rows = []
    for size in larger(cluster.chosen, LARGEST)[1:]:
        cells: list[tuple[float | None, bool]] = []
        for option, _ in cluster.options:
            layout = attrs.evolve(option, nodes=size.nodes)
            is_known = option.strategy != TENSOR or layout.world == option.world
            cells.append((cluster.efficiency(layout), cluster.fits(layout)) if is_known else (None, True))
        rows.append((size.world, cells))
    return rows


def cluster_as_json(cluster: Cluster) -> dict[str, Any]:
    """Return the plan as an object of JSON: bytes, seconds and shares."""
    taken = cluster.time(cluster.chosen)
    return {
        "nodes": cluster.chosen.nodes,
        "devices_per_node": cluster.chosen.per_node,
        "strategies": [
            {
                "options": layout.option,
                "phases": {phase.name: phase.taken for phase in measured.phases},
                "host": measured.host,
                "fits": measured.worst.taken + cluster.found.baseline <= cluster.limit,
            }
            for layout, measured in cluster.options
        ],
        "rates": attrs.asdict(cluster.rates),
        "sent": [attrs.asdict(each) for each in taken.traffic],
        "seconds": taken.seconds,
        "efficiency": [
            {"devices": devices, "shares": {
                layout.option: share for (layout, _), (share, _) in zip(cluster.options, cells, strict=True)
            }}
            for devices, cells in growing(cluster)
        ],
    }  # fmt: skip


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
