"""What the laws of samplers whose workers are other processes need to know of one, and can let happen to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

Fault = Literal["dies", "late", "twice"]
"""What happens to an answer of a worker.

* `dies`: the worker ends before it answers.
* `late`: the answer comes when the sampler waits for it no more, or waits long.
* `twice`: the answer comes, and then again.
"""


def _nothing(_fault: Fault, _sampler: Any) -> None:
    """Let nothing happen."""


@attrs.frozen(kw_only=True)
class Remote:
    """A sampler whose workers are other processes, as the author of its plugin describes it to the laws.

    Attributes:
        disturb: called as `disturb(fault, sampler)` before a round; lets one of `faults` happen to one of the answers
            in it.
        faults: those that it can let happen.
        draws_by_seeds: whether the workers draw tokens from the seeds of rows as the sampler `default` does, so that
            they sample the same.
        tolerance: largest difference of a log-prob from the policy's own, in nats.
    """

    disturb: Callable[[Fault, Any], None] = _nothing
    faults: tuple[Fault, ...] = ()
    draws_by_seeds: bool = True
    tolerance: float = 1e-5
