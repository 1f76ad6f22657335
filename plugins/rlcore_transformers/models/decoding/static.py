"""The seam for static decoding (`model.decoding: static`), which a plugin provides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.plugins.builtin import how_to_install, published
from rlcore.plugins.registry import all_registries
from rlcore.protocols import Decoder
from rlcore_transformers.models.decoding.causal_decoder import ReadHeads


class MakeDecoder(Protocol):
    """Makes the decoder of a batch of prompts: `InputLayout.decoder`, or a function that a plugin puts in its place."""

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,
    ) -> Decoder:
        """Return a decoder that has not read the prompts yet."""
        ...


def check_static_is_installed() -> None:
    """Check that the plugin that provides static decoding is loaded.

    Raises:
        ConfigError: it is not; the message says how to install it, or why it is not loaded.
    """
    dist = _dist()
    plugin = next((plugin for plugin in all_registries().discovery.plugins if plugin.dist == dist), None)
    if plugin is None:
        _refuse(f"which is not installed: {how_to_install(dist)}")
    elif not plugin.is_loaded:
        _refuse(f"which is installed, but {plugin.state}: {plugin.reason}")


def make_no_decoder(*_: Any, **__: Any) -> Decoder:
    """Stand in as `MakeDecoder` until the plugin has wrapped a policy whose `decoding` is static.

    Raises:
        ConfigError: always.
    """
    check_static_is_installed()
    _refuse("which wraps the policy of a run; this policy was built outside of a run")


def _dist() -> str:
    return published("options")["model.decoding"].dist


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(
        f"model.decoding = 'static': static decoding comes with {_dist()}, {reason}; auto and dynamic need no plugin"
    )
