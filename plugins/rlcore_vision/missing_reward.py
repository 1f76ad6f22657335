"""The reward `vision_reward_model` where rlcore-reward is not installed: an error that names the package; light."""

from __future__ import annotations

from typing import Any

from rlcore.config import config, option
from rlcore.errors import ConfigError

OPTIONS = (
    "path", "tokenizer", "batch_size", "dtype", "device", "max_length", "trust_remote_code", "revision", "allow_urls",
    "image_cache_gb",
)  # fmt: skip
"""Names of the reward's options, which are accepted here so that the error is about the package."""


NEEDS = (
    "vision_reward_model needs the package rlcore-reward, which is not installed: pip install 'rlcore-vision[reward]' "
    "(in a clone of rlcore: pip install ./plugins/rlcore_transformers ./plugins/rlcore_reward)"
)


def _refuse(_: object) -> None:
    raise ConfigError(NEEDS)


def _make_options() -> Any:
    defaults = {name: option(None, "an option of the reward, whose package is not installed") for name in OPTIONS}
    others = {"__annotations__": dict.fromkeys(OPTIONS, Any), "__module__": __name__, "__attrs_post_init__": _refuse}
    return config(type("MissingOptions", (), {**defaults, **others, "__doc__": "Options that are never read."}))


MissingOptions: Any = _make_options()
"""Options that raise a `ConfigError` when they are set, before the run loads its model."""


class MissingReward:
    """A reward that cannot be built, since its options cannot."""

    def __init__(self, config: object) -> None:
        _refuse(config)

    def __call__(self, outputs: list[str]) -> list[float]:
        """Return nothing; there is no object with this method."""
        del outputs
        raise ConfigError(NEEDS)
