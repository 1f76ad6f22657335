"""A plan for several devices: every strategy's memory, and the traffic and time of a round, to many devices."""

from __future__ import annotations

from typing import Any

import attrs

from rlcore_plan.estimate import Estimate
from rlcore_plan.layout import TENSOR, WHOLE, Placement, every_layout
from rlcore_plan.operations import Matrices, matrices_of
from rlcore_plan.rates import Rates
from rlcore_plan.round_time import LARGEST, RENEWING, RoundTime, Work, larger, round_time, work_of
from rlcore_plan.step_memory import Measured

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
