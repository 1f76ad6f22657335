"""What `accelerate launch` was told to shard, which a run does by options of its own, or refuses."""

from __future__ import annotations

import os
from typing import Any

from rlcore.errors import RanksError
from rlcore.ranks.environment import SHARDING, is_set
from rlcore.settings import TrainConfig

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
