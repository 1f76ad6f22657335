"""What a policy returns for the chosen tokens of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from torch import Tensor

from rlcore.errors import ModelError

Output = Literal["values", "entropy", "logits", "q_values", "q_logprobs", "target_q_values"]
"""A field of `PolicyOutputs` that not every policy, or not every call, returns."""


@attrs.frozen(eq=False)
class PolicyOutputs:
    """A policy's outputs for the chosen tokens of a batch; entries of other tokens are zero.

    Attributes:
        logprobs: float[B, T], log pi of each chosen token, at the temperature that was requested, 1 by default.
        values: float[B, T] or None, V before each chosen token; present if the policy has a value head.
        entropy: float[B, T] or None, entropy in nats of the distribution of each chosen token; only if requested.
        logits: float[N, V] or None, of the chosen tokens in row-major order, divided by the temperature; only if
            requested.
        q_values: float[K, B, T] or None, Q of each chosen token by K Q-heads; present if the policy has them.
        q_logprobs: float[K, B, T] or None, log-softmax of each Q-head's values at the chosen token.
        target_q_values: float[K, B, T] or None, Q by the target copies of the Q-heads, without gradients.
    """

    logprobs: Tensor
    values: Tensor | None = None
    entropy: Tensor | None = None
    logits: Tensor | None = None
    q_values: Tensor | None = None
    q_logprobs: Tensor | None = None
    target_q_values: Tensor | None = None

    def need(self, name: Output) -> Tensor:
        """Return the output called `name`, which must be present.

        Raises:
            ModelError: the policy did not return it.
        """
        output: Tensor | None = getattr(self, name)
        if output is None:
            raise ModelError(f"the policy returned no {name}: {_REQUESTS[name]}")
        return output


_REQUESTS: Mapping[Output, str] = {
    "values": "build it with run.build_policy(value_head=True)",
    "entropy": "request it with policy.score(batch, entropy=True)",
    "logits": "request them with policy.score(batch, logits=True)",
    "q_values": "build it with run.build_policy(q_heads=K)",
    "q_logprobs": "build it with run.build_policy(q_heads=K)",
    "target_q_values": "build it with run.build_policy(q_heads=K)",
}
