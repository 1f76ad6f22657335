"""The arguments of user functions: those of a batch, and those of them that a function's signature names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import attrs
from numpy import ndarray
from torch import Tensor

from rlcore.data.user_code import bound_names, parameters_of
from rlcore.errors import DataError, RewardError
from rlcore.logging import get_logger
from rlcore.plugins.registry import services
from rlcore.types import RESERVED_COLUMNS, Prompt

log = get_logger("rewards")

_OF_ONE_OUTPUT = ("completion", "response", "response_str", "solution_str", "predict_str", "generation", "prediction")
_OF_OUTPUTS = ("completions", *(f"{name}s" for name in _OF_ONE_OUTPUT[1:]), "generated_texts", *_OF_ONE_OUTPUT)
_OF_TOKENS = ("completion_ids", "completion_tokens", "response_ids", "response_tokens", "output_ids", "token_ids")
_ALIASES = dict.fromkeys(_OF_OUTPUTS, "outputs") | dict.fromkeys(_OF_TOKENS, "output_tokens")
"""Names that other libraries have for an argument."""
_OF_ONE_SAMPLE = ("prompt", "output", *_OF_ONE_OUTPUT)
"""Names of arguments of functions that other libraries call with one sample."""
_LOGGED = set[tuple[str, str]]()
"""Functions and the columns of which it was logged that they do not receive them."""
_CONSTANT = (str, int, float, bool, type(None), bytes)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = ("samples", "prompts", "outputs")


@attrs.frozen(eq=False)
class UserFunction:
    """A reward or metric function of the user.

    Attributes:
        kind: "reward" or "metric".
        name: the function's name in messages and metrics.
        call: the function itself.
        weight: factor of a reward in the total.
        timeout_s: seconds that one call may take; None: any number.
        parameters: those of its signature, by name, without those that `functools.partial` has bound; None if it has
            no signature.
    """

    kind: str
    name: str
    call: Callable[..., Any]
    weight: float = 1.0
    timeout_s: float | None = None
    parameters: Mapping[str, inspect.Parameter] | None = attrs.field(init=False, repr=False)

    @parameters.default
    def _signature(self) -> Mapping[str, inspect.Parameter] | None:
        return parameters_of(self.call)

    def __str__(self) -> str:
        return f"{self.kind} function '{self.name}'"


@attrs.frozen(eq=False)
class CallInputs:
    """Arguments of a function call for K samples of a batch, and the place in the run for messages.

    Attributes:
        arguments: every argument that a function may take, by name: `samples`, `prompts`, `outputs`, `messages`,
            `output_tokens`, `tokenizer`, and the columns.
        indices: the index of each sample in the batch, for messages.
        batch_size: number of samples in the whole batch; the call may cover only some of them.
        where: "step 3", for messages.
        by_position: names of the arguments that positional-only parameters receive, in their order; the first is also
            passed to a first parameter of any name.
        hidden: columns that have the name of another argument, such as `messages`, and that no function receives.
    """

    arguments: Mapping[str, Any]
    indices: Sequence[int]
    batch_size: int
    where: str
    by_position: Sequence[str] = _BY_POSITION
    hidden: Sequence[str] = ()

    @property
    def size(self) -> int:
        """Return K, the number of samples."""
        return len(self.indices)

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        tokenizer: object,
        where: str,
        *,
        output_tokens: Sequence[Sequence[int]] | None = None,
        rows: Sequence[int] | None = None,
        further: Mapping[str, Sequence[object]] = MappingProxyType({}),
    ) -> CallInputs:
        """Build the arguments from prompts, outputs and, if known, the ids of the outputs.

        Args:
            prompts: B prompts.
            outputs: the output of each prompt, or of each prompt at `rows`.
            tokenizer: the policy's tokenizer.
            where: the place in the run, for messages.
            output_tokens: the ids of each output.
            rows: indices of the prompts in the call; all by default. The columns are always those of all B prompts, so
                that a function receives a column even if these prompts lack it.
            further: B values of each further argument, such as the `turns` of episodes.

        Raises:
            DataError: a column of the prompts has the name of another argument.
        """
        every, indices = prompts, range(len(prompts)) if rows is None else rows
        prompts = [prompts[row] for row in indices]
        arguments: dict[str, object] = {
            "samples": [prompt.text + output for prompt, output in zip(prompts, outputs, strict=True)],
            "prompts": [prompt.text for prompt in prompts],
            "outputs": list(outputs),
            "messages": [answered(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)],
            "tokenizer": tokenizer,
        }
        if output_tokens is not None:
            arguments["output_tokens"] = [list(tokens) for tokens in output_tokens]
        arguments |= {name: [values[row] for row in indices] for name, values in further.items()}
        whole, hidden = _with_columns(arguments, every, prompts, RESERVED_COLUMNS)
        return cls(whole, indices, len(every), where, hidden=hidden)

    @classmethod
    def about(cls, prompts: Sequence[Prompt], outputs: Mapping[str, object], where: str) -> CallInputs:
        """Build the arguments from prompts and outputs that are no text.

        Args:
            prompts: B prompts.
            outputs: B outputs by the name of the argument, such as `{"images": images}`.
            where: the place in the run, for messages.

        Raises:
            DataError: a column of the prompts has the name of another argument.
        """
        order = (*outputs, "prompts")
        arguments = {**outputs, "prompts": [prompt.text for prompt in prompts]}
        arguments, hidden = _with_columns(arguments, prompts, prompts, (*RESERVED_COLUMNS, *outputs))
        return cls(arguments, range(len(prompts)), len(prompts), where, order, hidden)

    @property
    def num_actions(self) -> list[int]:
        """Return how many dense rewards each sample may have: one for each token, or 1 for outputs that are no text."""
        tokens = self.arguments.get("output_tokens")
        return [1] * self.size if tokens is None else [len(each) for each in tokens]

    @property
    def place(self) -> str:
        """Return the place in the run and the size of the batch, for messages."""
        batch = f"batch of {self.batch_size}"
        if self.size < self.batch_size:
            batch = f"{self.size} of a {batch}"
        return f"{self.where}, {batch}" if self.where else batch

    def fail(self, function: UserFunction, problem: str, cause: BaseException | None = None) -> NoReturn:
        """Raise a RewardError that names the function and the batch."""
        raise RewardError(f"{function} ({self.place}) {problem}") from cause

    def arguments_of(self, function: UserFunction) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments that the signature of a function names, as copies.

        Raises:
            RewardError: the function requires an argument that does not exist, or one that has the name of a column.
        """
        arguments: Mapping[str, object] = {name: _copied(value) for name, value in self.arguments.items()}
        first = self.by_position[0]
        if function.parameters is None:
            return [arguments[first]], {}
        parameters = list(function.parameters.values())
        try:
            adapted = services().reward_arguments(parameters, arguments)
        except RewardError as error:
            self.fail(function, str(error))
        self._check_hidden(function, parameters)
        arguments = arguments if adapted is None else adapted
        by_position = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        args = [arguments[name] for name in self.by_position[: len(by_position)]]
        self._check_order(function, by_position)
        by_name = [p for p in parameters if p.kind in _NAMED]
        missing = [p for p in by_name if p.default is p.empty and p.name not in arguments]
        missing += [p for p in by_position[len(self.by_position) :] if p.default is p.empty]
        # The first parameter may have any name that does not look like a misspelt argument.
        own_name = (
            first in arguments
            and bool(missing)
            and missing == by_name[:1]
            and not (by_position or _near(missing[0].name, arguments))
        )
        if own_name and missing[0].kind is missing[0].POSITIONAL_OR_KEYWORD:
            args, by_name, missing = [arguments[first]], by_name[1:], []
        if missing:
            self._fail_unknown(function, missing[0].name, arguments)
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            without = {p.name for p in by_position} | bound_names(function.call)
            return args, {name: value for name, value in arguments.items() if name not in without}
        return args, {p.name: arguments[p.name] for p in by_name if p.name in arguments}

    def received(self, function: UserFunction, error: BaseException) -> str:
        """Return what a function received, for its error; empty if that explains nothing.

        The arguments are stated if a key of its `**` parameter does not exist, or if its signature names none, as that
        of a decorator without `functools.wraps` does not.
        """
        parameters = list((function.parameters or {}).values())
        names = list(self.arguments_of(function)[1])
        if "completions" in names and (form := _form_of_completions(error, self.arguments.get("messages") or [None])):
            return form
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return ""
        is_key = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
        if is_key and error.args[0].isidentifier() and error.args[0] not in names:
            return f"; it was called with {', '.join(names)}"
        if isinstance(error, TypeError) and all(
            each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters
        ):
            return (
                f"; its signature names no argument, so it was called with {', '.join(names)}: functools.wraps gives a "
                "decorated function the signature of the function that it calls"
            )
        return ""

    def _fail_unknown(self, function: UserFunction, name: str, arguments: Mapping[str, object]) -> NoReturn:
        near = _ALIASES.get(name) or next(iter(difflib.get_close_matches(name, list(arguments), n=1, cutoff=0.7)), None)
        hint = f"did you mean '{near}'? Known" if near else "known"
        text = f"has an unknown parameter '{name}'; {hint} parameters: {', '.join(arguments)}"
        if name in _OF_ONE_SAMPLE:
            text += (
                f". A call is for all samples of a batch: each argument is a list, and so is the result ({self.size})"
            )
        self.fail(function, text)

    def _check_order(self, function: UserFunction, by_position: Sequence[inspect.Parameter]) -> None:
        """Refuse positional-only parameters that have the name of another argument than the one they receive."""
        for parameter, name in zip(by_position, self.by_position, strict=False):
            meant = _ALIASES.get(parameter.name, parameter.name)
            if meant != name and meant in self.arguments:
                self.fail(
                    function,
                    f"has the positional-only parameter '{parameter.name}', and these receive "
                    f"{', '.join(self.by_position)} in this order; remove the '/', so that it is called by name",
                )

    def _check_hidden(self, function: UserFunction, parameters: Sequence[inspect.Parameter]) -> None:
        """Refuse a column that hides an argument which the function names; one that it might expect is logged once."""
        if asked := [p.name for p in parameters if p.kind in _NAMED and p.name in self.hidden]:
            self.fail(
                function,
                f"takes '{asked[0]}', which is an argument of its own ({', '.join(self.arguments)}), and the prompts "
                "have a column of this name; rename the column (data.columns), or leave it out",
            )
        new = [name for name in self.hidden if (str(function), name) not in _LOGGED]
        if new and any(p.kind is p.VAR_KEYWORD for p in parameters):
            _LOGGED.update((str(function), name) for name in new)
            log.warning(
                "columns of the prompts have the names of other arguments, and functions do not receive them; rename "
                "them (data.columns)", columns=new, function=function.name,
            )  # fmt: skip


def _with_columns(
    arguments: dict[str, object], every: Sequence[Prompt], prompts: Sequence[Prompt], reserved: Sequence[str]
) -> tuple[dict[str, object], list[str]]:
    """Return the arguments with the columns that any of `every` prompt has, and those that other arguments hide."""
    names = list(dict.fromkeys(name for prompt in every for name in prompt.columns))
    if clash := [name for name in names if name in reserved]:
        raise DataError(
            f"the prompts have a column '{clash[0]}', which is the name of another argument of reward functions "
            f"({', '.join(reserved)}); rename the column"
        )
    columns = [name for name in names if name not in arguments]  # `messages` is the conversation
    hidden = [name for name in names if name in arguments]
    return arguments | {name: [prompt.columns.get(name) for prompt in prompts] for name in columns}, hidden


def answered(prompt: Prompt, output: str) -> list[dict[str, Any]] | None:
    """Return the conversation with the output as the last message; None if the prompt is a plain text.

    An output that continues a message of the assistant is appended to it.
    """
    if prompt.messages is None:
        return None
    messages = [dict(message) for message in prompt.messages]
    if messages and messages[-1].get("role") == "assistant" and isinstance(messages[-1].get("content"), str):
        messages[-1]["content"] += output
        return messages
    return [*messages, {"role": "assistant", "content": output}]


def _form_of_completions(error: BaseException, messages: Sequence[object]) -> str:
    """Return which form completions have, if an error of a function in the form of TRL is of one that reads another."""
    if not isinstance(error, TypeError | AttributeError):
        return ""
    if all(each is None for each in messages) and str(error).startswith("string indices must be integers"):
        return (
            "; the prompts are texts, so completions are texts too: data.as_messages=true makes them conversations, "
            "whose completions are lists of messages"
        )
    if all(each is not None for each in messages) and "list" in str(error):
        return "; the prompts are conversations, so a completion is a list of messages: completion[0]['content']"
    return ""


def _copied(value: object) -> object:
    """Return a copy of lists, mappings, arrays and tensors, at any depth: no function can modify what another reads.

    Rows are passed again in a later step, so the values of a column are copied too; those of samples of one prompt
    apart.
    """
    try:
        return _copy(value, ())
    except RecursionError:
        return value


def _copy(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, ndarray):
        return value.copy()
    if type(value) not in (list, dict) or id(value) in inside:
        return value
    inside = (*inside, id(value))
    if isinstance(value, dict):
        return {key: each if type(each) in _CONSTANT else _copy(each, inside) for key, each in value.items()}
    return [each if type(each) in _CONSTANT else _copy(each, inside) for each in value]


def _near(name: str, arguments: Mapping[str, object]) -> str | None:
    near = difflib.get_close_matches(name, list(arguments), n=1)
    return _ALIASES.get(name) or (near[0] if near else None)
