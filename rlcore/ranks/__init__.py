"""The processes of a run and their collective operations, based on `accelerate`.

Also in this file: what a launcher's environment variables say: how processes meet, and which launches are refused.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, broadcast_object_list, gather_object
from torch import Tensor

from rlcore.errors import ConfigError, RanksError

SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}
"""Variables by which `accelerate launch` chooses to shard the model; on a CPU accelerate itself ignores them."""
UNSET = {"", "0", "false", "no", "off", "n", "f"}
START = "start the script with torchrun --nproc_per_node N or accelerate launch, or unset WORLD_SIZE to run one process"


def environment_world() -> int:
    """Return the number of processes according to the environment.

    Raises:
        RanksError: the number cannot be read, or the launcher was to do what rlcore does not do.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal():
        raise RanksError(f"WORLD_SIZE = {world!r}: must be a whole number; {START}")
    for variable, name in SHARDING.items():
        if is_set(variable):
            raise RanksError(
                f"{variable} = {os.environ[variable]}: `accelerate launch` was told to shard the model by {name} in a "
                "way for which rlcore has no counterpart: start it with torchrun --nproc_per_node N, set "
                f"run.shard=fsdp to divide the model, and unset {variable}"
            )
    # `accelerate launch --cpu --num_processes N` starts one process without WORLD_SIZE, but names a master for several.
    if "WORLD_SIZE" not in os.environ and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= os.environ.keys():
        raise RanksError(
            "accelerate launch was told to start several processes, but started only this one, as it does on a CPU: "
            "use torchrun --nproc_per_node N, or rlcore train FILE.yaml run.processes=N"
        )
    return int(world)


def is_set(variable: str) -> bool:
    """Return whether a variable of the environment is set to something that means yes."""
    return os.environ.get(variable, "").lower() not in UNSET


def check_processes(processes: int, world: int, cluster: object = None) -> None:
    """Check the number of processes that a configuration asks for.

    Args:
        processes: `run.processes`.
        world: the number of processes there are.
        cluster: `run.cluster`.

    Raises:
        ConfigError: there is another number of processes than one that is not 1, or no launcher started this one.
    """
    asked = f"run.cluster = {cluster!r}" if cluster else f"run.processes = {processes}"
    if processes in (1, world) and not (cluster and world == 1 and "RLCORE_STARTED" not in os.environ):
        return
    if world > 1:
        raise ConfigError(f"run.processes = {processes}, but WORLD_SIZE = {world}: leave run.processes out")
    raise ConfigError(
        f"{asked}: rlcore.train runs in this process alone; start the program with torchrun "
        f"--nproc_per_node {processes} PROGRAM.py, or a configuration with rlcore train FILE.yaml"
    )


@functools.cache
def rendezvous_method() -> str:
    """Return the `init_method` of the process group: that of `env://`, apart for each attempt of a launcher.

    torchrun's store outlives a restart, and the addresses of processes that have ended are still in it.
    """
    from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public all the same
    from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

    def meet(_url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        for store, rank, world in rendezvous("env://", **options):
            yield PrefixStore(f"rlcore/attempt/{attempt}", store), rank, world

    register_rendezvous_handler("rlcore", meet)
    return "rlcore://"


T = TypeVar("T")
TIMEOUT_S = 600.0
"""How long a collective operation may take where no configuration says otherwise, in seconds."""

OPENING = timedelta(seconds=120)
"""How long processes may at least wait for each other when they start."""

_GRADIENTS = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
"""Gradients lie in the memory from which they are exchanged, instead of being copied there and back."""


class Watchdog:
    """What knows more about a collective operation that fails than its error; this one knows nothing.

    Attributes:
        doing: the part of the run in progress, such as "step 3"; empty after the run.
        waiting: the collective operation in progress; empty if there is none.
        num_waits: number of collective operations so far.
    """

    doing, waiting, num_waits = "building the run", "", 0

    def note_failure(self, error: BaseException) -> None:
        """Note that this rank ends by an error of its own."""

    def explain(self, error: BaseException) -> str:
        """Return why a collective operation of this rank failed with an error of the backend."""
        return f"another process has ended; see its own error ({error})"

    def when_alone(self, stop: Callable[[], None]) -> None:
        """Call `stop` from another thread when the launcher has ended; it replaces the function of an earlier run."""

    def stop(self) -> None:
        """End what watches; called when the run is no longer in use."""


class Ranks:
    """This process and the other processes of the run.

    Attributes:
        rank: index of this process; rank 0 writes files.
        world: number of processes.
        device: device of this process.
        watchdog: explains failures of collective operations.
        mixed_precision: precision of forward and backward passes: "no", "bf16" or "fp16".

    Args:
        mixed_precision: the precision; None takes that of `accelerate launch`.
        timeout_s: how long a process may wait for the others in a collective operation, in seconds.
    """

    def __init__(self, mixed_precision: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        world, timeout = environment_world(), timedelta(seconds=timeout_s)
        # A second run in one process may use another precision, and accelerate has no public API to change it.
        AcceleratorState._reset_state()  # noqa: SLF001
        # Without `cpu`, processes on a machine without an accelerator would not connect to each other.
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        cpu = kind is None or kind.type == "mps"  # mps lacks float64, which sums over ranks use
        try:
            self.accelerator = Accelerator(
                cpu=cpu, mixed_precision=mixed_precision, kwargs_handlers=[_process_group(world, timeout), _GRADIENTS]
            )
        except ValueError as error:
            # Processes connect to each other before accelerate checks the precision.
            if world > 1 and not torch.distributed.is_initialized():
                raise RanksError(f"WORLD_SIZE = {world}, but the other processes cannot be found; {START}") from error
            raise ConfigError(f"run.mixed_precision = {mixed_precision!r}: {error}") from error
        if mixed_precision == "fp16" and self.accelerator.device.type == "cpu":
            raise ConfigError("run.mixed_precision = 'fp16': not supported on a CPU; use bf16")
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
        self.watchdog = Watchdog()
        if world > 1:
            from torch.distributed.distributed_c10d import _set_pg_timeout  # which some builds of torch lack

            _set_pg_timeout(timeout)  # an earlier run of this process may have opened the process group

    def watch(self, watchdog: Watchdog) -> None:
        """Let another watchdog explain failures, from now on."""
        self.watchdog = watchdog
        weakref.finalize(self, watchdog.stop)

    def note(self, doing: str) -> None:
        """Note which part of the run is in progress, such as "step 3", for the errors of collective operations.

        Args:
            doing: the part; empty after the run.
        """
        self.watchdog.doing = doing

    def note_failure(self, error: BaseException) -> None:
        """Note that this process ends by an error of its own, which the errors of the others then name."""
        if not isinstance(error, RanksError):
            self.watchdog.note_failure(error)

    @contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """Run a collective operation, which all processes must reach, in the block.

        Args:
            name: what errors call the operation.

        Raises:
            RanksError: another process has ended, or one has not reached the operation within the timeout.
        """
        self.watchdog.waiting = name
        self.watchdog.num_waits += 1
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):  # an error of this process
                raise
            raise RanksError(self.watchdog.explain(error)) from error
        finally:
            self.watchdog.waiting = ""

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors that torch raises in the block because of other processes into those of `collective`.

        Gradients are exchanged within backward passes, whose other errors are raised unchanged.

        Raises:
            RanksError: another process has ended, or has not reached an exchange within the timeout.
        """
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or isinstance(error, RanksError) or not _is_of_backend(error):
                raise
            raise RanksError(self.watchdog.explain(error)) from error

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return bool(self.rank == 0)

    def sum(self, value: float | Tensor) -> Tensor:
        """Return the sum of `value` over all processes: float64[...]."""
        total = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if self.world > 1:
            total = total.clone()
            with self.collective("sum"):
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

    def broadcast(self, value: object) -> Any:
        """Return the value that rank 0 passed."""
        if self.world == 1:
            return value
        box = [value]
        with self.collective("broadcast"):
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
        """Return the concatenated lists of all processes, in the order of ranks.

        Values are pickled, and every process receives those of all: arrays of rows belong into a `Round`.
        """
        if self.world == 1:
            return values
        with self.collective("gather"):
            return list(gather_object(values))

    def gather_to_main(self, values: list[T]) -> list[T]:
        """Return the concatenated lists of all processes on rank 0, which writes files; an empty list on the others."""
        if self.world == 1:
            return values
        received: list[Any] | None = [None] * self.world if self.is_main else None
        with self.collective("gather_to_main"):
            torch.distributed.gather_object(values, received)
        return list(chain.from_iterable(received or []))

    def share(self, count: int, *, group: int = 1) -> list[int]:
        """Return the indices of this process's share of `count` items: rank, rank + world, rank + 2 world, ...

        With `group`, so many consecutive items stay together, and groups are dealt in this way; `count` is a multiple.
        """
        groups = range(self.rank, count // group, self.world)
        return [row for each in groups for row in range(each * group, (each + 1) * group)]

    def wait(self) -> None:
        """Wait until every process has called this."""
        with self.collective("wait"):
            self.accelerator.wait_for_everyone()


def _process_group(world: int, timeout: timedelta) -> InitProcessGroupKwargs:
    """Return how accelerate opens the process group; processes that start at different times have a while for it."""
    timeout = max(timeout, OPENING)
    if world == 1:
        return InitProcessGroupKwargs(timeout=timeout)
    return InitProcessGroupKwargs(init_method=rendezvous_method(), timeout=timeout)


def _leave() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _is_of_backend(error: RuntimeError) -> bool:
    """Return whether the backend of the process group raised an error; gloo raises plain RuntimeErrors."""
    return "/gloo/" in str(error) or isinstance(error, torch.distributed.DistError)
