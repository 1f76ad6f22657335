"""Give policies of `model.decoding: static` their decoder; light, because every command imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlcore import hookimpl

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.settings import TrainConfig


@hookimpl
def wrap_component(component: Component[Any], config: TrainConfig | None) -> Callable[[Any], Any] | None:
    """Wrap the policy of a run with `model.decoding: static`."""
    if component.kind != "architectures" or config is None or config.model.get("decoding") != "static":
        return None
    return with_static_decoding


def with_static_decoding(policy: Any) -> Any:
    """Call `policy.use_decoder` and return the same policy; those of other architectures, without `decoding`, stay."""
    if getattr(policy, "decoding", None) == "static":
        from rlcore_cuda_graphs.choice import StaticDecoding

        pad_id = int(policy.tokenizer.pad_token_id or 0)
        policy.use_decoder(lambda ordinary: StaticDecoding(ordinary, pad_id=pad_id))
    return policy
