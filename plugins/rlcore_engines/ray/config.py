"""Options of the sampler `ray`; light, so that they can be listed without Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from rlcore.config import config, option
from rlcore_engines.ray.engine import check_engine, engine_options
from rlcore_transformers.sampling.token_options import TokenOptions


@config
class RayConfig(TokenOptions):
    """Options of the sampler `ray`."""

    num_actors: int = option(2, "processes that sample, each with a copy of the policy", ge=1, le=4096)
    address: str | None = option(
        None, "address of a Ray cluster, such as 10.0.0.5:6379; default: that of the variable RAY_ADDRESS, or else a "
        "Ray of the run's own on this machine, which ends with it",
    )  # fmt: skip
    num_cpus: float = option(
        1.0, "processors of the cluster that each actor holds; it computes with so many threads, at least one",
        ge=0, le=1024,
    )  # fmt: skip
    num_gpus: float = option(
        0.0, "GPUs of the cluster that each actor holds; with 0 it samples on the CPU", ge=0, le=16
    )
    resources: Mapping[str, float] = option(
        attrs.Factory(dict),
        "further resources that each actor holds, such as {sampling: 1}, by which machines are chosen",
    )
    placement: Literal["default", "spread"] = option(
        "default", "how actors are dealt to machines: as Ray does, on few of them, or `spread` over all"
    )
    engine: Mapping[str, Any] = option(
        attrs.Factory(dict),
        "a sampler that each actor has in place of rlcore's own, with its options, such as {name: vllm, python: "
        "/opt/vllm/bin/python}, by which every actor starts a vLLM server on its machine",
    )
    rows: int = option(
        0, "prompts that an actor samples at a time; 0: a round's prompts are divided evenly among the actors",
        ge=0, unit="sequences",
    )  # fmt: skip
    timeout_s: float = option(
        1800.0, "longest time for such prompts; an actor that takes longer is replaced, and others sample them",
        gt=0, le=1e9, unit="seconds",
    )  # fmt: skip
    start_timeout_s: float = option(
        600.0, "longest time for all actors to start, and for one to get new weights", gt=0, le=1e9, unit="seconds"
    )
    restarts: int = option(3, "most times that each actor is replaced after it has died", ge=0, le=1000)

    def __attrs_post_init__(self) -> None:
        """Check the options against one another."""
        super().__attrs_post_init__()
        if self.engine:
            check_engine(self.engine, self.reshaping)

    def serving(self) -> Mapping[str, Any]:
        """Return where actors sample and what they need of the ranks, for `rlcore plan`.

        Weights that train reach Ray's store once in a round, from which actors read them.
        """
        own: dict[str, Any] = {
            "engines": self.num_actors, "devices": math.ceil(self.num_gpus), "sends": "trained",
        }  # fmt: skip
        if not self.engine:
            return own
        declared: Mapping[str, Any] = getattr(engine_options(self.engine), "serving", dict)()
        taken = {name: declared[name] for name in ("dtype", "utilisation") if name in declared}
        return {**own, **taken, "host_copy": True}
