"""The processes of a run and their collective operations, based on `accelerate`."""

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
from rlcore.ranks.trajectory_bytes import header, layout, num_bytes, pack, unpack
from rlcore.types import Trajectories, grouped, tensor_on

T = TypeVar("T")
_LAUNCH = (
    "start the script with torchrun --nproc_per_node N or accelerate launch, or unset WORLD_SIZE to run one process"
)
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class Ranks:
    """This process and the other processes of the run.

    Attributes:
        rank: index of this process; rank 0 writes files.
        world: number of processes.
        device: device of this process.
        mixed_precision: precision of forward and backward passes: "no", "bf16" or "fp16".
    """

    def __init__(self, mixed_precision: str | None = None) -> None:
        world = _environment_world()
        # A second run in one process may use another precision, and accelerate has no public API to change it.
        AcceleratorState._reset_state()  # noqa: SLF001
        # Without `cpu`, processes on a machine without an accelerator would not connect to each other.
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        cpu = kind is None or kind.type == "mps"  # mps lacks float64, which sums over ranks use
        try:
            self.accelerator = Accelerator(cpu=cpu, mixed_precision=mixed_precision)
        except ValueError as error:
            # Processes connect to each other before accelerate checks the precision.
            if world > 1 and not torch.distributed.is_initialized():
                raise RanksError(f"WORLD_SIZE = {world}, but the other processes cannot be found; {_LAUNCH}") from error
            raise ConfigError(f"run.mixed_precision = {mixed_precision!r}: {error}") from error
        if mixed_precision == "fp16" and self.accelerator.device.type == "cpu":
            raise ConfigError("run.mixed_precision = 'fp16': not supported on a CPU; use bf16")
        if self.accelerator.distributed_type in SHARDED:
            raise RanksError(
                f"accelerate is set to {self.accelerator.distributed_type.value}, which shards the model; rlcore "
                "supports one process, or several with a full copy each: use torchrun or accelerate launch --multi_gpu"
            )
        self.accelerator.gradient_accumulation_steps = 1  # micro-batches are up to the trainer
        self.mixed_precision = str(self.accelerator.mixed_precision)
        # A process that exits with an open process group may be aborted by the threads of the group.
        atexit.unregister(_leave)
        atexit.register(_leave)
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.device: torch.device = self.accelerator.device
        if self.world != world:
            raise RanksError(
                f"WORLD_SIZE = {world}, but accelerate runs {self.world} process(es) "
                f"({self.accelerator.distributed_type}): start the script with torchrun or accelerate launch"
            )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return bool(self.rank == 0)

    def sum(self, value: float | Tensor) -> Tensor:
        """Return the sum of `value` over all processes: float64[...]."""
        total = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if self.world > 1:
            total = total.clone()
            with _collective():
                torch.distributed.all_reduce(total)
        return total

    def average(self, columns: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
        """Return the mean of each column over all processes, ignoring None; a column of nothing else has no mean."""
        sums = [sum(x for x in column if x is not None) for column in columns.values()]
        counts = [sum(x is not None for x in column) for column in columns.values()]
        totals = self.sum(torch.tensor([sums, counts], dtype=torch.float64)).tolist()
        return {name: total / count for name, total, count in zip(columns, *totals, strict=True) if count}

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any process."""
        return bool(self.sum(float(flag)) > 0)

    def broadcast(self, value: Any) -> Any:
        """Return the value that rank 0 passed."""
        if self.world == 1:
            return value
        box = [value]
        with _collective():
            broadcast_object_list(box, from_process=0)
        return box[0]

    def on_main(self, make: Callable[[], T]) -> T:
        """Return on every process what `make` returns on rank 0; if it raises there, all processes raise."""
        value: T | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                value = make()
            except Exception as caught:  # noqa: BLE001  sent to every process, and raised below
                error = caught
        value, failure = self.broadcast((value, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if failure is not None:
            raise RanksError(f"process 0 failed: {failure}")
        return cast("T", value)

    def gather(self, values: list[Any]) -> list[Any]:
        """Return the concatenated lists of all processes, in the order of ranks."""
        if self.world == 1:
            return values
        with _collective():
            return list(gather_object(values))

    def share(self, count: int, *, group: int = 1) -> list[int]:
        """Return the indices of this process's share of `count` items: rank, rank + world, rank + 2 world, ...

        With `group`, so many consecutive items stay together, and groups are dealt in this way; `count` is a multiple.
        """
        return self._dealt(self.rank, count // group, group)

    def gather_batch(self, batch: Trajectories, *, group: int = 1) -> Trajectories:
        """Return the whole batch, in its original order, from the shares of all processes, dealt by `share`.

        Raises:
            RanksError: the batches of two processes have different columns.
        """
        if self.world == 1:
            return batch
        with phase("gather"):
            whole = Trajectories.concat(self._exchange(batch.to(self.device)))
            count = len(whole) // group
            rows = [row for rank in range(self.world) for row in self._dealt(rank, count, group)]
            return whole.rows(tensor_on(self.device, rows).argsort())

    def _exchange(self, batch: Trajectories) -> list[Trajectories]:
        """Return the batches of all processes, which exchange two tensors: the sizes, and the bytes."""
        headers = [each.tolist() for each in self._all_gather(tensor_on(self.device, header(batch)))]
        if len({checksum for *_, checksum in headers}) > 1:
            layouts = "; ".join(f"process {rank}: {each}" for rank, each in enumerate(self.gather([layout(batch)])))
            raise RanksError(f"the columns of a round differ between processes: {layouts}; return the same on all")
        packed, room = pack(batch), max(num_bytes(batch, numbers) for numbers in headers)
        received = self._all_gather(torch.nn.functional.pad(packed, (0, room - len(packed))))
        return [unpack(part, batch, numbers) for part, numbers in zip(received, headers, strict=True)]

    def _all_gather(self, array: Tensor) -> list[Tensor]:
        """Return the arrays of all processes, which have the same shape and dtype."""
        every = [torch.empty_like(array) for _ in range(self.world)]
        with _collective():
            torch.distributed.all_gather(every, array)
        return every

    def _dealt(self, rank: int, count: int, group: int) -> list[int]:
        return [row for each in range(rank, count, self.world) for row in range(each * group, (each + 1) * group)]

    def take_share(self, batch: Trajectories, *, group: int = 1) -> Trajectories:
        """Return this process's rows of a batch that every process holds; all processes receive equally many rows.

        Groups of `group` consecutive rows are distributed round-robin. If they do not divide evenly, some processes
        receive the prompts of the first group as filler rows, without chosen tokens, so that they add nothing to sums.
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
        """Wait until every process has called this."""
        with _collective():
            self.accelerator.wait_for_everyone()


def _environment_world() -> int:
    """Return the number of processes according to the environment."""
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal():
        raise RanksError(f"WORLD_SIZE = {world!r}: must be a whole number; {_LAUNCH}")
    return int(world)


def _leave() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _collective() -> Iterator[None]:
    """Turn the error of a collective operation that another process has left into a RanksError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):  # an error of this process
            raise
        reason = str(error).partition(". ")[0]
        raise RanksError(f"another process has ended; see its own error ({reason})") from error
