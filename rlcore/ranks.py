"""One process or many: the few things processes must agree on, over `accelerate`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor

from rlcore.errors import ConfigError, RanksError
from rlcore.profiling import phase
from rlcore.types import Trajectories, grouped

T = TypeVar("T")
_LAUNCH = (
    "start the script with torchrun --nproc_per_node N or accelerate launch, or unset WORLD_SIZE to run one process"
)
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class Ranks:
    """Know this process's place among the processes of the run.

    Attributes:
        rank: number of this process, 0 for the one that writes.
        world: number of processes.
        device: where this process computes.
        mixed_precision: of forward and backward passes: "no", "bf16" or "fp16".
    """

    def __init__(self, mixed_precision: str | None = None) -> None:
        wanted = _wanted_world()
        # A second run in one process may want another precision, and accelerate has no public way to change it.
        AcceleratorState._reset_state()  # noqa: SLF001
        # Without saying `cpu`, processes started on a machine with no accelerator would not find each other.
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        cpu = kind is None or kind.type == "mps"  # which has no float64, in which sums over ranks are taken
        try:
            self.accelerator = Accelerator(cpu=cpu, mixed_precision=mixed_precision)
        except ValueError as error:
            # Processes find each other before accelerate looks at the precision.
            if wanted > 1 and not torch.distributed.is_initialized():
                raise RanksError(f"WORLD_SIZE = {wanted}, yet nothing tells where the others are; {_LAUNCH}") from error
            raise ConfigError(f"run.mixed_precision = {mixed_precision!r}: {error}") from error
        if mixed_precision == "fp16" and self.accelerator.device.type == "cpu":
            raise ConfigError("run.mixed_precision = 'fp16': a CPU has no use for it; bf16 is what it can run")
        if self.accelerator.distributed_type in SHARDED:
            raise RanksError(
                f"accelerate is set to {self.accelerator.distributed_type.value}, which shards the model: rlcore runs "
                "one process, or several with the whole model each: use torchrun or accelerate launch --multi_gpu"
            )
        self.accelerator.gradient_accumulation_steps = 1  # a trainer's micro-batches are the only ones
        self.mixed_precision = str(self.accelerator.mixed_precision)
        # A process that ends with the group still open may be aborted by the group's own threads.
        atexit.unregister(_leave)
        atexit.register(_leave)
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.device: torch.device = self.accelerator.device
        if self.world != wanted:
            raise RanksError(
                f"WORLD_SIZE = {wanted}, yet accelerate runs {self.world} process(es) "
                f"({self.accelerator.distributed_type}): start the script with torchrun or accelerate launch"
            )

    @property
    def is_main(self) -> bool:
        """Tell whether this is the process that writes files and speaks."""
        return bool(self.rank == 0)

    def sum(self, value: float | Tensor) -> Tensor:
        """Add `value` over all processes: float64[...]."""
        total = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if self.world > 1:
            total = total.clone()
            with _together():
                torch.distributed.all_reduce(total)
        return total

    def average(self, columns: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
        """Average each column over its numbers on all processes; what is None takes no part."""
        sums = [sum(x for x in column if x is not None) for column in columns.values()]
        counts = [sum(x is not None for x in column) for column in columns.values()]
        totals = self.sum(torch.tensor([sums, counts], dtype=torch.float64)).tolist()
        return {name: total / max(count, 1.0) for name, total, count in zip(columns, *totals, strict=True)}

    def any(self, flag: bool) -> bool:
        """Tell whether `flag` is true on any process."""
        return bool(self.sum(float(flag)) > 0)

    def broadcast(self, value: Any) -> Any:
        """Return what process 0 passed."""
        if self.world == 1:
            return value
        box = [value]
        with _together():
            broadcast_object_list(box, from_process=0)
        return box[0]

    def on_main(self, make: Callable[[], T]) -> T:
        """Return on every process what `make` returns on process 0; what it raises there ends all of them."""
        made: T | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                made = make()
            except Exception as caught:  # noqa: BLE001  told to every process, and raised below
                error = caught
        made, failure = self.broadcast((made, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if failure is not None:
            raise RanksError(f"process 0 failed: {failure}")
        return cast("T", made)

    def gather(self, values: list[Any]) -> list[Any]:
        """Return the lists of all processes put together, in the order of ranks."""
        if self.world == 1:
            return values
        with _together():
            return list(gather_object(values))

    def share(self, count: int) -> list[int]:
        """Return which of `count` items are this process's: every `world`-th, beginning with its rank."""
        return list(range(self.rank, count, self.world))

    def gather_batch(self, batch: Trajectories) -> Trajectories:
        """Put together the shares of all processes, so that each holds the whole batch in the order it had."""
        if self.world == 1:
            return batch
        with phase("gather"):
            parts = self.gather([batch.to("cpu")])
            whole = Trajectories.concat(parts)
            dealt = [row for rank, part in enumerate(parts) for row in range(rank, len(part) * self.world, self.world)]
            order = torch.tensor(dealt).argsort()
            return whole.rows(order).to(self.device)

    def take_share(self, batch: Trajectories, *, group: int = 1) -> Trajectories:
        """Return this process's rows of a batch that every process holds, as many as every other process's.

        Consecutive rows are dealt `group` at a time. Where groups are short, the prompts of the first group stand in,
        with no chosen token: they weigh nothing in any sum. The rest of these rows is left out, because without choices
        nothing tells where the prompt ended.
        """
        if self.world == 1:
            return batch
        count = len(batch) // group
        share, size = self.share(count), -(-count // self.world)
        index = torch.tensor([*share, 0][:size], device=batch.tokens.device)
        mine = batch.rows(grouped(index, group))
        real = len(share) * group
        if real < size * group:
            mine.mask[real:] &= mine.action_mask[real:].cumsum(1) == 0
            mine.action_mask[real:] = False
        return mine

    def wait(self) -> None:
        """Return when every process has come here."""
        with _together():
            self.accelerator.wait_for_everyone()


def _wanted_world() -> int:
    """Return how many processes the environment says there are."""
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal():
        raise RanksError(f"WORLD_SIZE = {world!r}: must be a whole number; {_LAUNCH}")
    return int(world)


def _leave() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """Say in plain words that another process has left in the middle of what all do together."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):  # this process's own
            raise
        reason = str(error).partition(". ")[0]
        raise RanksError(f"another process has ended, and says itself why ({reason})") from error
