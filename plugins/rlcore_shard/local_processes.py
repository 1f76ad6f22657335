"""Start the processes of a run on this machine through torch's elastic launcher, and report their first error once.

A process that fails writes its error to the file that the launcher names. Where several fail, as when one does and the
others lose it, the earliest is printed, and its exit code is that of the command.

Also in this file: what `accelerate launch` was told to shard, which a run does by options of its own, or refuses; what
a run with several processes calls: to start them, to accept what their launcher was told, to watch them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.cli import STARTED
from rlcore.errors import RanksError
from rlcore.ranks import SHARDING, is_set
from rlcore.safe_text import write
from rlcore.settings import TrainConfig
from rlcore_shard.launcher import follow_launcher

if TYPE_CHECKING:
    from rlcore.ranks import Watchdog


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


def _errors(folder: Path) -> list[dict[str, Any]]:
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


def _of_fsdp() -> tuple[dict[str, Any], bool]:
    """Return the options of a run for FSDP, and whether it keeps the parts in the CPU's memory."""
    offload = is_set("FSDP_OFFLOAD_PARAMS")
    if os.environ.get("FSDP_VERSION") == "2":
        frees = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() == "true"
        return ({"run.shard": "fsdp", "run.shard_within": "world"} if frees else {}), offload
    within = WITHIN.get(os.environ.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD").upper())
    return ({"run.shard": "fsdp", "run.shard_within": within} if within else {}), offload


def _of_deepspeed() -> tuple[dict[str, Any], bool]:
    """Return the options of a run for DeepSpeed, whose configuration file is not read; and whether it offloads."""
    kept = [os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE", "none") for what in ("OPTIMIZER", "PARAM")]
    stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "")
    offloads = {"2": ["cpu", "none"], "3": ["cpu", "cpu"]}.get(stage)
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ or not offloads or kept not in (offloads, ["none", "none"]):
        return {}, False
    return {"run.shard": f"zero{stage}", "run.shard_within": "world"}, kept == offloads


def _value(config: TrainConfig, name: str) -> Any:
    section, _, option = name.partition(".")
    return config.model.get(option) if section == "model" else getattr(config.run, option)


__all__ = ["accept_launch", "start", "watch"]


def accept_launch(config: TrainConfig) -> None:
    """Do what `accelerate launch` was told by options of the run, and end this process some time after its launcher.

    Raises:
        RanksError: the launcher was told to divide the model in a way that the options do not name, or the options name
            a cluster, whose processes the launcher has not started.
    """
    from rlcore_shard.local_processes import accept_sharding

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
