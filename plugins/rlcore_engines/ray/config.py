"""Options of the sampler `ray`; light, so that they can be listed without Ray.

Also in this file: the sampler that each actor has in place of rlcore's own, such as `vllm` with a server for each
actor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from rlcore.config import config, option, structure
from rlcore.errors import ConfigError
from rlcore.plugins.registry import registries
from rlcore_transformers.sampling.token_options import TokenOptions

if TYPE_CHECKING:
    from rlcore.types import Options

PATH = "sampler.engine"
REFUSED = {
    "url": "every actor has other weights for a moment, so that none may share a server: name python instead, with "
    "which each starts its own",
    "sleep": "actors do not see when the policy learns",
    "continue_responses": "actors answer when their responses have ended",
}
"""Options of samplers that actors cannot follow, and why."""


def check_engine(values: Mapping[str, object], reshaping: tuple[str, ...]) -> None:
    """Check the entry `engine`.

    Args:
        values: the entry.
        reshaping: options on tokens that are set beside it.

    Raises:
        ConfigError: it has no name, an option that actors cannot follow, or stands beside options on tokens.
    """
    name = values.get("name")
    if not isinstance(name, str) or name in {"ray", "rlcore-engines:ray"}:
        raise ConfigError(f"engine.name = {name!r}: must be the name of another sampler, such as vllm")
    for each, reason in REFUSED.items():
        if values.get(each):
            raise ConfigError(f"engine.{each} = {values[each]!r}: {reason}")
    if reshaping:
        raise ConfigError(
            f"{reshaping[0]}: stands beside engine, whose sampler does not see it; write engine.{reshaping[0]}"
        )


def build_engine(values: Options) -> Any:
    """Return the sampler that `engine` names, with its options.

    Raises:
        UnknownComponent: no plugin registered the name.
        ConfigError: an option is unknown or invalid.
    """
    target: Any = registries().samplers.get(values["name"]).target()
    options = engine_options(values)
    return target if options is None else target(options)


def engine_options(values: Options) -> object:
    """Return the options of the sampler that `engine` names; None if it has none.

    Raises:
        UnknownComponent: no plugin registered the name.
        ConfigError: an option is unknown or invalid.
    """
    component = registries().samplers.get(values["name"])
    cls, given = component.config_class(), {name: each for name, each in values.items() if name != "name"}
    if cls is None and given:
        raise ConfigError(f"{PATH}.{next(iter(given))}: '{component.name}' has no options")
    return None if cls is None else structure(cls, given, path=PATH)


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
        own: dict[str, object] = {
            "engines": self.num_actors, "devices": math.ceil(self.num_gpus), "sends": "trained",
        }  # fmt: skip
        if not self.engine:
            return own
        declared: Mapping[str, object] = getattr(engine_options(self.engine), "serving", dict)()
        taken = {name: declared[name] for name in ("dtype", "utilisation") if name in declared}
        return {**own, **taken, "host_copy": True}
