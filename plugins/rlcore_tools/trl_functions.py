"""Reward functions in the form of TRL, as reward functions of a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["trl_reward"]

OURS = frozenset({"samples", "outputs", "messages", "output_tokens", "tokenizer"})
"""Arguments of reward functions that those of TRL do not have."""


def trl_reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that calls one written for TRL's `GRPOTrainer` or `RLOOTrainer`.

    It is called as `function(prompts=..., completions=..., completion_ids=..., trainer_state=None, log_extra=...,
    log_metric=..., **columns)`, with only the arguments in its signature. Where a prompt is a conversation,
    `prompts[i]` is its messages and `completions[i]` a list with the answer as one message, as in TRL; otherwise both
    are strings. `None` means that the function does not apply. Coroutine functions are awaited. `log_extra` and
    `log_metric` have no effect. A run adapts a function that names `completions` by itself.

        rlcore.train(..., reward_fn=trl_reward(accuracy_reward))

    Args:
        function: a reward function in the form of TRL.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = frozenset(each.name for each in parameters)

    def call(
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, Any]] | None],
        output_tokens: Sequence[Sequence[int]] | None = None,
        **further: Any,
    ) -> Any:
        given = {"prompts": prompts, "outputs": outputs, "messages": messages, "output_tokens": output_tokens}
        arguments = trl_arguments({**further, **given})
        return function(**{name: value for name, value in arguments.items() if takes_all or name in names})

    while isinstance(function, functools.partial):
        function = function.func
    call.__name__ = getattr(function, "__name__", type(function).__name__)  # its name in metrics
    return call


def is_of_trl(parameters: Iterable[inspect.Parameter], arguments: Mapping[str, Any]) -> bool:
    """Return whether a signature names TRL's `completions`, which is no column, and no argument of rlcore alone."""
    names = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    is_text = "outputs" in arguments and "messages" in arguments
    return is_text and "completions" in names - arguments.keys() and not names & OURS


def trl_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reward function of a run as TRL passes them."""
    prompts, outputs, messages = (arguments[name] for name in ("prompts", "outputs", "messages"))
    return {name: value for name, value in arguments.items() if name not in OURS} | {
        "prompts": [
            text if each is None else _asked(each, output)
            for text, each, output in zip(prompts, messages, outputs, strict=True)
        ],
        "completions": [
            output if each is None else [{"role": "assistant", "content": output}]
            for each, output in zip(messages, outputs, strict=True)
        ],
        "completion_ids": arguments.get("output_tokens"),
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }


def _asked(messages: Sequence[Mapping[str, Any]], output: str) -> list[Mapping[str, Any]]:
    """Return the messages before the answer, which may have continued the last of them."""
    *before, last = messages
    begun = str(last["content"]).removesuffix(output)
    return [*before, {**last, "content": begun}] if begun else before


def _ignore(*_: Any, **__: Any) -> None:
    """Log nothing."""
