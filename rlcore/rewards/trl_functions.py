"""Reward functions in the form of TRL, as reward functions of a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DROPPED = ("samples", "tokenizer")
"""Arguments of reward functions that those of TRL do not know."""


def trl_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that calls one written for TRL's `GRPOTrainer` or `RLOOTrainer`.

    It is called as `function(prompts=..., completions=..., completion_ids=..., trainer_state=None, log_extra=...,
    log_metric=..., **columns)`, with only the arguments in its signature. Where a prompt is a conversation,
    `prompts[i]` is its messages and `completions[i]` a list with the answer as one message, as in TRL; otherwise both
    are strings. `None` means that the function does not apply. Coroutine functions are awaited. `log_extra` and
    `log_metric` have no effect.

        rlcore.train(..., reward_fn=trl_reward(accuracy_reward))

    Args:
        function: a reward function in the form of TRL.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}

    def call(
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, Any]] | None],
        output_tokens: Sequence[Sequence[int]] | None = None,
        **further: Any,
    ) -> Any:
        arguments = {name: value for name, value in further.items() if name not in DROPPED}
        arguments |= {
            "prompts": [
                text if each is None else _asked(each, output)
                for text, each, output in zip(prompts, messages, outputs, strict=True)
            ],
            "completions": [
                output if each is None else [{"role": "assistant", "content": output}]
                for each, output in zip(messages, outputs, strict=True)
            ],
            "completion_ids": output_tokens,
            "trainer_state": None,
            "log_extra": _ignore,
            "log_metric": _ignore,
        }
        return function(**{name: value for name, value in arguments.items() if takes_all or name in names})

    while isinstance(function, functools.partial):
        function = function.func
    call.__name__ = getattr(function, "__name__", type(function).__name__)  # its name in metrics
    return call


def _asked(messages: Sequence[Mapping[str, Any]], output: str) -> list[Mapping[str, Any]]:
    """Return the messages before the answer, which may have continued the last of them."""
    *before, last = messages
    begun = str(last["content"]).removesuffix(output)
    return [*before, {**last, "content": begun}] if begun else before


def _ignore(*_: Any, **__: Any) -> None:
    """Log nothing."""
