"""Start the processes of a run on this machine through torch's elastic launcher, and report their first error once.

A process that fails writes its error to the file that the launcher names. Where several fail, as when one does and the
others lose it, the earliest is printed, and its exit code is that of the command.

Also in this file: what `accelerate launch` was told to shard, which a run does by options of its own, or refuses;
what a run with several processes calls: to start them, to accept what their launcher was told, to watch them; end a
process that torchrun, `accelerate launch` or `run.processes` started once that launcher has ended.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from rlcore.cli import STARTED
from rlcore.errors import RanksError
from rlcore.ranks import SHARDING, is_set
from rlcore.safe_text import write
from rlcore.settings import TrainConfig

if TYPE_CHECKING:
    from rlcore.ranks import Watchdog

__all__ = ["accept_launch", "start", "watch"]

POLL_S = 0.25
SAVE_S = 4.0
"""How long a process may take to finish its step and save once its launcher has ended."""

_followers: set[int] = set()  # of process ids, since a fork inherits this set and not the thread
_stop: list[Callable[[], None]] = []


def follow_launcher() -> None:
    """Start the thread that waits for the end of the launcher, once in a process that has one."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getpid() not in _followers:
        _followers.add(os.getpid())
        threading.Thread(target=_follow, args=(os.getppid(),), name="rlcore-launcher", daemon=True).start()


def when_alone(stop: Callable[[], None]) -> None:
    """Call `stop` from another thread when the launcher has ended; it replaces the function of an earlier run."""
    _stop[:] = [stop]


def leave(what: str) -> NoReturn:
    """Request a stop, so that the run saves if it can, and end this process `SAVE_S` seconds later.

    Args:
        what: what has ended.
    """
    # Ends the process also while a library holds the interpreter's lock, or the interpreter itself is ending.
    faulthandler.dump_traceback_later(SAVE_S, exit=True, file=_nowhere())
    rank = os.environ.get("RANK", "?")
    os.write(2, f"rank {rank}: {what} has ended: saving if the step ends in time; ends within {SAVE_S:g} s\n".encode())
    for stop in _stop:
        stop()
    time.sleep(SAVE_S)
    os._exit(1)


@functools.cache
def _nowhere() -> IO[str]:
    """Return an open file that keeps nothing, for the traceback that faulthandler writes."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(POLL_S)
    leave(f"its launcher (process {launcher})")


PATIENCE_S = 10**5
"""How long the processes may take to finish their step after Ctrl-C; a second one stops them at once."""


def start(processes: int, words: Sequence[str]) -> int:
    """Run `rlcore *words` in several processes, one per GPU if there are GPUs, and return the exit code.

    Ctrl-C and SIGTERM are passed on to the processes, which finish their step, save and exit.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    threads = str(max(1, (os.cpu_count() or 1) // processes))
    before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}
    logging.disable(logging.CRITICAL)  # the launcher reports the ends of processes with tracebacks of its own
    os.environ.update({STARTED: "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)})
    failed: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="rlcore-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, logs_specs=DefaultLogsSpecs(log_dir=folder),
            run_id=uuid.uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
            shutdown_timeout=PATIENCE_S,
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)("-m", "rlcore", *words)
        except SignalException:
            pass  # the processes have ended, with an error or without
        except ChildFailedError as error:
            failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
        finally:
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)
            logging.disable(logging.NOTSET)
            del os.environ[STARTED]
        return _report(_errors(Path(folder)), failed)


def _errors(folder: Path) -> list[dict[str, object]]:
    """Return the errors that processes recorded, in the order of time."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.rglob("error.json")]
    return sorted(found, key=lambda error: int(error["time_ns"]))


def _report(errors: Sequence[dict[str, Any]], failed: dict[int, int]) -> int:
    for rank, code in failed.items():
        if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(-code).name
            hint = ", as for lack of memory" if name == "SIGKILL" else ""
            write(f"rlcore: rank {rank} was ended by {name}{hint}", sys.stderr)
    if errors:
        write(errors[0]["message"], sys.stderr)
        return int(errors[0]["code"])
    return 1 if failed else 0


FSDP, DEEPSPEED = "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"
WITHIN = {"1": "world", "FULL_SHARD": "world", "4": "node", "HYBRID_SHARD": "node"}
"""`run.shard_within` by the sharding strategy of FSDP1."""


def accept_sharding(config: TrainConfig) -> None:
    """Take a variable of accelerate out of the environment if options of the run do what it says.

    accelerate and transformers, which read it too, would otherwise wrap the model, or leave it unloaded on all ranks
    except one. Variables without a counterpart are left to the core, which refuses them.

    Raises:
        RanksError: the options of the run say something else; the error names those that do the same.
    """
    for variable, name in SHARDING.items():
        options = _options(variable)
        if not is_set(variable) or not options:
            continue
        if not all(_value(config, option) == value for option, value in options.items()):
            line = " ".join(f"{option}={str(value).lower()}" for option, value in options.items())
            raise RanksError(
                f"{variable} = {os.environ[variable]}: `accelerate launch` was told to shard the model by {name}, "
                f"which the run has to be told too: set {line}, or unset {variable}"
            )
        del os.environ[variable]


def _options(variable: str) -> dict[str, Any]:
    """Return the options of a run that do what a variable and those beside it say; empty if there are none."""
    shard, offload = _of_fsdp() if variable == FSDP else _of_deepspeed() if variable == DEEPSPEED else ({}, False)
    if not shard:
        return {}
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):  # one machine, to which both are the same
        shard.pop("run.shard_within", None)
    if variable == FSDP and is_set("FSDP_ACTIVATION_CHECKPOINTING"):
        shard["model.gradient_checkpointing"] = True
    return {**shard, "run.offload": True} if offload else shard


def _of_fsdp() -> tuple[dict[str, object], bool]:
    """Return the options of a run for FSDP, and whether it keeps the parts in the CPU's memory."""
    offload = is_set("FSDP_OFFLOAD_PARAMS")
    if os.environ.get("FSDP_VERSION") == "2":
        frees = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() == "true"
        return ({"run.shard": "fsdp", "run.shard_within": "world"} if frees else {}), offload
    within = WITHIN.get(os.environ.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD").upper())
    return ({"run.shard": "fsdp", "run.shard_within": within} if within else {}), offload


def _of_deepspeed() -> tuple[dict[str, object], bool]:
    """Return the options of a run for DeepSpeed, whose configuration file is not read; and whether it offloads."""
    kept = [os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE", "none") for what in ("OPTIMIZER", "PARAM")]
    stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "")
    offloads = {"2": ["cpu", "none"], "3": ["cpu", "cpu"]}.get(stage)
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ or not offloads or kept not in (offloads, ["none", "none"]):
        return {}, False
    return {"run.shard": f"zero{stage}", "run.shard_within": "world"}, kept == offloads


def _value(config: TrainConfig, name: str) -> object:
    section, _, option = name.partition(".")
    return config.model.get(option) if section == "model" else getattr(config.run, option)


def accept_launch(config: TrainConfig) -> None:
    """Do what `accelerate launch` was told by options of the run, and end this process some time after its launcher.

    Raises:
        RanksError: the launcher was told to divide the model in a way that the options do not name, or the options name
            a cluster, whose processes the launcher has not started.
    """
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    if config.run.cluster and several and STARTED not in os.environ:
        raise RanksError(
            f"run.cluster = {config.run.cluster!r}: another launcher, such as torchrun, has started this process "
            f"(WORLD_SIZE = {os.environ['WORLD_SIZE']}): leave run.cluster out, or start the run without that "
            "launcher, by rlcore train, which starts run.processes processes on the cluster"
        )
    accept_sharding(config)
    if several:
        follow_launcher()


def watch(rank: int, world: int, timeout_s: float) -> Watchdog:
    """Return the watchdog of this process, whose thread has begun to report."""
    from rlcore_shard.watchdog import Reporter  # needs torch.distributed, which some builds of torch lack

    return Reporter(rank=rank, world=world, timeout_s=timeout_s)
