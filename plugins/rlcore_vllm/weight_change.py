"""Whether a server's log-probs have followed a change of the policy's weights; pure.

The tolerance of the other check must allow for an engine in low precision, whose log-probs differ from the policy's by
more than one update changes them. These differences are nearly the same before and after an update, so that the change
of a server's log-probs says more than their values.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

EVIDENCE = 100.0
"""How many times the mean square of the usual difference the squares must speak for the weights before. The difference
of a normally distributed error would have to be 7 standard deviations for a false alarm."""
LEAST = 1e-6
"""Differences of log-probs that rounding in float32 may cause, in nats."""
CHANGED = 1e-3
"""A change of the policy's log-probs, in nats, after which not all of a server's can be the same bits as before."""


@attrs.frozen
class Tokens:
    """Log-probs of the same tokens by a server and by the policy, before a change of the weights and after it."""

    served_before: Sequence[float]
    served: Sequence[float]
    own_before: Sequence[float]
    own: Sequence[float]


def follows(tokens: Tokens, usual: float) -> bool:
    """Return whether a server's log-probs have changed as the policy's, or cannot be told from such.

    Args:
        tokens: the log-probs.
        usual: mean square of the differences between the server's and the policy's log-probs before the change.
    """
    changes = [now - before for now, before in zip(tokens.served, tokens.served_before, strict=True)]
    wanted = [now - before for now, before in zip(tokens.own, tokens.own_before, strict=True)]
    if not any(changes) and max(map(abs, wanted), default=0.0) > CHANGED:
        return False
    from_old = sum(change**2 for change in changes)
    from_new = sum((change - want) ** 2 for change, want in zip(changes, wanted, strict=True))
    return from_new - from_old <= EVIDENCE * (usual + LEAST**2)
