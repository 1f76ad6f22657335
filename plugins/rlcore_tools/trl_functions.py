"""Reward and metric functions in the form of TRL, as those of a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.data.user_code import bound_names, parameters_of
from rlcore.errors import RewardError
from rlcore.logging import get_logger

if TYPE_CHECKING:
    from rlcore.types import Message

__all__ = ["trl_reward"]

log = get_logger("trl_functions")

OURS = frozenset({"samples", "outputs", "messages", "output_tokens", "tokenizer"})
"""Arguments of reward functions that those of TRL do not have."""
ALWAYS = ("completions", "completion_ids", "trainer_state")
"""Arguments of TRL that no column may hide."""
ABSENT = {
    "trainer_state": (
        "an observer is told of every step (on_step(run, metrics), with run.step), and the method open(run) of a "
        "registered reward receives the run"
    ),
    "environments": (
        "the arguments info, turns, transcript and environment_rewards have what an episode's environment returned"
    ),
    "log_metric": "the mean of a further reward function with the weight 0 is logged as reward/NAME",
    "log_extra": "rollouts.jsonl has the columns of each row, and the numbers of each of several reward functions",
}
"""Arguments of TRL that do not exist here → what there is instead."""

_WARNED = set[str]()


def trl_reward(function: Callable[..., object]) -> Callable[..., object]:
    """Return a reward function that calls one written for TRL's `GRPOTrainer` or `RLOOTrainer`.

    It is called as `function(prompts=..., completions=..., completion_ids=..., **columns)`, with only the arguments in
    its signature. Where a prompt is a conversation, `prompts[i]` is its messages and `completions[i]` a list with the
    answer as one message, as in TRL; otherwise both are strings. With tools or an environment, `completions[i]` is all
    messages of the episode after the prompt, and calls of tools have TRL's form. `completion_ids[i]` are the sampled
    tokens, EOS included. `None` means that the function does not apply. Coroutine functions are awaited, and arguments
    that a `functools.partial` has bound are kept. `log_metric` and `log_extra` log nothing, and a warning names them. A
    run adapts a function that names one of TRL's arguments by itself.

        rlcore.train(..., reward_fn=trl_reward(accuracy_reward))

    Args:
        function: a reward function in the form of TRL.

    Raises:
        RewardError: the function requires an argument that does not exist here, such as `trainer_state`.
    """
    parameters = list((parameters_of(function) or {}).values())
    _refuse_absent(parameters)
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names, bound = frozenset(each.name for each in parameters), bound_names(function)

    def call(
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, object]] | None],
        output_tokens: Sequence[Sequence[int]] | None = None,
        **further: object,
    ) -> Any:
        given = {"prompts": prompts, "outputs": outputs, "messages": messages, "output_tokens": output_tokens}
        _refuse_columns(further)
        arguments = trl_arguments({**further, **given})
        taken = {name for name in arguments if (takes_all or name in names) and name not in bound}
        return function(**{name: arguments[name] for name in taken})

    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    call.__name__ = getattr(inner, "__name__", type(inner).__name__)  # its name in metrics
    return call


def adapted(parameters: Sequence[inspect.Parameter], arguments: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the arguments of TRL for a function whose signature names one of them; None for other functions.

    Raises:
        RewardError: the function requires an argument that does not exist here, or a column has the name of one.
    """
    if not is_of_trl(parameters, arguments):
        return None
    _refuse_columns(arguments)
    _refuse_absent(parameters)
    for name in ("trainer_state", "environments"):
        if name not in arguments and any(each.name == name for each in parameters):
            _warn_of(name, "an argument of TRL has its default")
    return trl_arguments(arguments)


def is_of_trl(parameters: Iterable[inspect.Parameter], arguments: Mapping[str, object]) -> bool:
    """Return whether a signature names an argument of TRL alone, and none of rlcore alone.

    A name that is only sometimes an argument of TRL, such as `environments`, may also be that of a column.
    """
    names = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    is_text = "outputs" in arguments and "messages" in arguments
    marks = {*ALWAYS, *(name for name in ABSENT if name not in arguments)}
    return is_text and bool(names & marks) and not names & OURS


def trl_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reward function of a run as TRL passes them."""
    outputs, messages = arguments["outputs"], arguments["messages"]
    begun = arguments.get("prompt_messages")
    if begun is not None:  # episodes
        prompts = begun
        completions = [
            [_as_in_trl(each) for each in said[len(asked) :]] for said, asked in zip(messages, begun, strict=True)
        ]
    else:
        prompts = [
            text if each is None else _asked(each, output)
            for text, each, output in zip(arguments["prompts"], messages, outputs, strict=True)
        ]
        completions = [
            output if each is None else [{"role": "assistant", "content": output}]
            for each, output in zip(messages, outputs, strict=True)
        ]
    silent = {name: functools.partial(_leave_out, name) for name in ("log_extra", "log_metric")}
    return silent | {name: value for name, value in arguments.items() if name not in OURS} | {
        "prompts": prompts, "completions": completions, "completion_ids": arguments.get("output_tokens"),
    }  # fmt: skip


def _asked(messages: Sequence[Mapping[str, object]], output: str) -> list[Mapping[str, Any]]:
    """Return the messages before the answer, which may have continued the last of them."""
    *before, last = messages
    begun = str(last["content"]).removesuffix(output)
    return [*before, {**last, "content": begun}] if begun else before


def _as_in_trl(message: Message) -> dict[str, Any]:
    """Return a message whose calls of tools have the form of TRL; a call that cannot be read is in the text alone."""
    made = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = [
        {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in message.get("tool_calls") or ()
        if "name" in call and "arguments" in call
    ]
    return made | ({"tool_calls": calls} if calls else {})


def _leave_out(name: str, *_: object, **__: object) -> None:
    """Log nothing in place of TRL, and once that nothing is logged."""
    _warn_of(name, "a reward function calls a function of TRL that logs nothing here")


def _warn_of(name: str, what: str) -> None:
    if name not in _WARNED:
        _WARNED.add(name)
        log.warning(what, argument=name, instead=ABSENT[name])


def _refuse_columns(arguments: Mapping[str, object]) -> None:
    for name in ALWAYS:
        if name in arguments:
            raise RewardError(
                f"is in the form of TRL, of which '{name}' is an argument, and the prompts have a column of this name; "
                "rename the column (data.columns), or leave it out"
            )


def _refuse_absent(parameters: Iterable[inspect.Parameter]) -> None:
    for each in parameters:
        if each.name in ABSENT and each.default is each.empty and each.kind is not each.VAR_KEYWORD:
            raise RewardError(
                f"takes TRL's '{each.name}', which does not exist here: {ABSENT[each.name]}; give the parameter a "
                "default to leave it out"
            )
