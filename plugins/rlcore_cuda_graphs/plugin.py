"""Give policies of `model.decoding: static` their decoder; light, because every command imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlcore import hookimpl
from rlcore.components import Component


@hookimpl
def wrap_component(component: Component[Any]) -> Callable[[Any], Any] | None:
    """Wrap the policy that an architecture builds."""
    return with_static_decoding if component.kind == "architectures" else None


def with_static_decoding(policy: Any) -> Any:
    """Call `policy.use_decoder` if the policy was built with `decoding: static`; return the same policy.

    Policies of other architectures have no attribute `decoding` and are left alone.
    """
    if getattr(policy, "decoding", None) == "static":
        from rlcore_cuda_graphs.choice import StaticDecoding

        pad_id = int(policy.tokenizer.pad_token_id or 0)
        policy.use_decoder(lambda ordinary: StaticDecoding(ordinary, pad_id=pad_id))
    return policy
