"""The devices of a run, and the strategy that divides its model among them."""

from __future__ import annotations

import attrs

from rlcore.errors import ConfigError
from rlcore.plugins.registry import registries
from rlcore.settings import RunConfig

WHOLE, FSDP, ZERO2, ZERO3, TENSOR = "none", "fsdp", "zero2", "zero3", "tp"
OURS = {"rlcore:none": WHOLE} | {f"rlcore-shard:{name}": name for name in (FSDP, ZERO2, ZERO3, TENSOR)}
"""The strategies whose memory and traffic are known, by full name."""


@attrs.frozen
class Placement:
    """The devices of a run, and what divides its model among them.

    Attributes:
        strategy: `none`, `fsdp`, `zero2`, `zero3` or `tp`.
        nodes: number of machines.
        per_node: devices of each machine, one for each process.
        within_node: whether the model is divided among the devices of a machine only.
        offload: whether parts and optimizer state are in the CPU's memory.
    """

    strategy: str = WHOLE
    nodes: int = 1
    per_node: int = 1
    within_node: bool = True
    offload: bool = False

    @property
    def world(self) -> int:
        """Return the number of processes."""
        return self.nodes * self.per_node

    @property
    def divides_weights(self) -> bool:
        """Return whether the strategy divides the weights, and not only gradients and optimizer state."""
        return self.strategy in (FSDP, ZERO3, TENSOR)

    @property
    def group(self) -> int:
        """Return the number of devices among which the model is divided; 1 if each has the whole."""
        if self.strategy == WHOLE:
            return 1
        return self.per_node if self.strategy == FSDP and self.within_node else self.world

    @property
    def option(self) -> str:
        """Return the options of `rlcore train` that choose the strategy."""
        words = [f"run.shard={self.strategy}"]
        if self.nodes > 1 and self.strategy != WHOLE:
            words.append(f"run.shard_within={'node' if self.strategy == FSDP and self.within_node else 'world'}")
        return " ".join(words + ["run.offload=true"] * self.offload)


def layout_of(run: RunConfig, nodes: int, per_node: int) -> Placement:
    """Return the layout that a configuration names.

    Raises:
        UnknownComponent: no strategy has this name.
        ConfigError: the plan does not know the strategy, or the options do not fit it.
    """
    component = registries().shardings.get(run.shard)
    strategy = OURS.get(component.qualified)
    if strategy is None:
        raise ConfigError(
            f"run.shard = '{run.shard}': rlcore plan does not know what {component} keeps on a device; it knows "
            f"{', '.join(OURS.values())}: plan with one of these, or measure the run (run.steps=1, perf/peak_memory_gb)"
        )
    if strategy != WHOLE and run.mixed_precision == "fp16":
        raise ConfigError(f"run.shard = '{run.shard}': run.mixed_precision = 'fp16' is not supported: use bf16")
    is_within = run.shard_within == "node"
    if strategy in (ZERO2, ZERO3, TENSOR) and is_within and nodes > 1:
        raise ConfigError(
            f"run.shard_within = 'node': run.shard = '{run.shard}' divides among all processes: set "
            "run.shard_within=world, or run.shard=fsdp"
        )
    if strategy in (WHOLE, TENSOR) and run.offload:
        raise ConfigError("run.offload: needs run.shard=fsdp, zero2 or zero3, whose parts it keeps in the CPU's memory")
    if strategy != WHOLE and run.asynchronous:
        raise ConfigError(
            f"run.asynchronous = {run.asynchronous}: needs the whole model on every process, and run.shard = "
            f"'{run.shard}' divides it: set one of them to its default"
        )
    return Placement(strategy, nodes, per_node, is_within, run.offload)


def every_layout(nodes: int, per_node: int, *, is_float32: bool = True) -> list[Placement]:
    """List the strategies that a run on these devices could choose.

    Args:
        nodes: number of machines.
        per_node: devices of each.
        is_float32: whether all weights that train are in 32 bits, as DeepSpeed's strategies require.
    """
    found = [Placement(WHOLE, nodes, per_node), Placement(FSDP, nodes, per_node)]
    if nodes > 1:
        found.append(Placement(FSDP, nodes, per_node, within_node=False))
    zero = (ZERO2, ZERO3) if is_float32 else ()
    return [*found, *(Placement(each, nodes, per_node, within_node=nodes == 1) for each in zero)]
