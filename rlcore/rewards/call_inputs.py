"""The arguments of user functions: those of a batch, and those of them that a function's signature names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import attrs

from rlcore.data.prompts import RESERVED_COLUMNS
from rlcore.errors import DataError, RewardError
from rlcore.types import Prompt

_ALIASES = dict.fromkeys(("completion", "completions", "response", "responses"), "outputs")
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
    """

    kind: str
    name: str
    call: Callable[..., Any]
    weight: float = 1.0
    timeout_s: float | None = None

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
    """

    arguments: Mapping[str, Any]
    indices: Sequence[int]
    batch_size: int
    where: str

    @property
    def size(self) -> int:
        """Return K, the number of samples."""
        return len(self.indices)

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        tokenizer: Any,
        where: str,
        *,
        output_tokens: Sequence[Sequence[int]] | None = None,
        rows: Sequence[int] | None = None,
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

        Raises:
            DataError: a column of the prompts has the name of another argument.
        """
        names = list(dict.fromkeys(name for prompt in prompts for name in prompt.columns))
        indices, batch_size = range(len(prompts)) if rows is None else rows, len(prompts)
        prompts = [prompts[row] for row in indices]
        for name in names:
            if name in RESERVED_COLUMNS:
                raise DataError(
                    f"the prompts have a column '{name}', which is the name of another argument of reward functions "
                    f"({', '.join(RESERVED_COLUMNS)}); rename the column"
                )
        arguments: dict[str, Any] = {
            "samples": [prompt.text + output for prompt, output in zip(prompts, outputs, strict=True)],
            "prompts": [prompt.text for prompt in prompts],
            "outputs": list(outputs),
            "messages": [answered(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)],
            "tokenizer": tokenizer,
        }
        if output_tokens is not None:
            arguments["output_tokens"] = [list(tokens) for tokens in output_tokens]
        columns = [name for name in names if name not in arguments]  # `messages` is the conversation
        arguments |= {name: [prompt.columns.get(name) for prompt in prompts] for name in columns}
        return cls(arguments, indices, batch_size, where)

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
            RewardError: the function requires an argument that does not exist.
        """
        # Each function receives copies of the lists, so that it cannot modify the arguments of another one.
        arguments = {name: list(value) if isinstance(value, list) else value for name, value in self.arguments.items()}
        parameters = _parameters(function.call)
        if parameters is None:
            return [arguments["samples"]], {}
        by_position = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        args = [arguments[name] for name in _BY_POSITION[: len(by_position)]]
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        missing = [p for p in by_name if p.default is p.empty and p.name not in arguments]
        missing += [p for p in by_position[len(_BY_POSITION) :] if p.default is p.empty]
        # The first parameter may have any name that does not look like a misspelt argument.
        own_name = bool(missing) and missing == by_name[:1] and not (by_position or _near(missing[0].name, arguments))
        if own_name and missing[0].kind is missing[0].POSITIONAL_OR_KEYWORD:
            args, by_name, missing = [arguments["samples"]], by_name[1:], []
        if missing:
            name = missing[0].name
            near = _near(name, arguments)
            hint = f"did you mean '{near}'? Known" if near else "known"
            self.fail(function, f"has an unknown parameter '{name}'; {hint} parameters: {', '.join(arguments)}")
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return args, {name: value for name, value in arguments.items() if name not in {p.name for p in by_position}}
        return args, {p.name: arguments[p.name] for p in by_name if p.name in arguments}


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


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(call).parameters.values())
    except (ValueError, TypeError):  # some built-ins have no signature
        return None


def _near(name: str, arguments: Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(name, list(arguments), n=1)
    return _ALIASES.get(name) or (near[0] if near else None)
