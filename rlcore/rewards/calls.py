"""Call user functions with the arguments in their signatures, await coroutines, and name the function in errors.

Gradients are disabled in all calls, because reward functions may be models.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch

from rlcore.components import describe_error
from rlcore.data.prompts import RESERVED_COLUMNS
from rlcore.data.torch_defaults import same_defaults
from rlcore.errors import DataError, RewardError
from rlcore.profiling import awaited, phase
from rlcore.rewards.deadline import CallTooLong, call_within, end_with_interpreter
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


class _Changes(str):
    """The result of a function that changed the defaults of torch: what it changed."""

    __slots__ = ()


@attrs.frozen(eq=False)
class Call:
    """Results of F functions that have been called; coroutines may still be running.

    Attributes:
        functions: F functions.
        inputs: their arguments.
        results: F returned values; an awaitable's result is in `awaited` instead.
        awaited: results of the awaitables by function index; None if no function returned an awaitable.
        pending: indices of the functions whose awaitables are not done.
        deadline: clock reading after which the awaitables are too late, in seconds; None if there is no limit.
    """

    functions: Sequence[UserFunction]
    inputs: CallInputs
    results: Sequence[Any]
    awaited: Future[dict[int, Any]] | None
    pending: set[int] = attrs.field(factory=set)
    deadline: float | None = None

    @classmethod
    def of(cls, functions: Sequence[UserFunction], inputs: CallInputs) -> Call:
        """Call each function, and start to await all returned awaitables concurrently.

        The awaitables run on an event loop in a daemon thread that lives as long as the process. Clients therefore keep
        their connections between calls, and the running loop of a notebook does not interfere.

        Raises:
            RewardError: a function raised, was too late, or requires an argument that does not exist.
        """
        results: list[Any] = []
        try:
            results.extend(_call(function, inputs) for function in functions)
        except BaseException:
            for result in results:
                if inspect.iscoroutine(result):
                    result.close()
            raise
        late = {i: result for i, result in enumerate(results) if inspect.isawaitable(result)}
        limits = [limit for i in late if (limit := functions[i].timeout_s) is not None]
        deadline, pending = time.monotonic() + min(limits) if limits else None, set(late)
        return cls(functions, inputs, results, _start(functions, late, pending) if late else None, pending, deadline)

    @property
    def is_done(self) -> bool:
        """Return whether every function has returned or raised."""
        return self.awaited is None or self.awaited.done()

    def cancel(self) -> None:
        """Cancel the awaitables that are still running."""
        if self.awaited is not None:
            self.awaited.cancel()

    def wait(self) -> list[Any]:
        """Wait for all functions, and return their F results.

        Raises:
            RewardError: a function raised or was too late.
        """
        results = list(self.results)
        if self.awaited is not None:
            try:
                with phase("awaiting"):
                    late = self._settled(self.awaited)
            except BaseException:
                self.cancel()
                raise
            for i, result in late.items():
                if isinstance(result, BaseException):
                    _fail(self.functions[i], self.inputs, result)
                results[i] = result
        for function, result in zip(self.functions, results, strict=True):
            if isinstance(result, _Changes):
                self.inputs.fail(function, str(result))
        return results

    def _settled(self, running: Future[dict[int, Any]]) -> dict[int, Any]:
        futures.wait([running], None if self.deadline is None else max(0.0, self.deadline - time.monotonic()))
        if self.pending and not running.done():
            end_with_interpreter(lambda: True)
            late = [self.functions[i] for i in sorted(self.pending)]
            _fail_late(attrs.evolve(late[0], name="', '".join(function.name for function in late)), self.inputs)
        return running.result()


def _call(function: UserFunction, inputs: CallInputs) -> Any:
    args, kwargs = _arguments(function, inputs)
    call = functools.partial(function.call, *args, **kwargs)
    try:
        with phase(function.name), torch.no_grad(), same_defaults() as changes:
            result = call() if function.timeout_s is None else call_within(function.timeout_s, call)
    except CallTooLong:
        _fail_late(function, inputs)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
        _fail(function, inputs, error)
    return _Changes(changes[0]) if changes else result


def _arguments(function: UserFunction, inputs: CallInputs) -> tuple[list[Any], dict[str, Any]]:
    # Each function receives copies of the lists, so that it cannot modify the arguments of another one.
    arguments = {name: list(value) if isinstance(value, list) else value for name, value in inputs.arguments.items()}
    parameters = _parameters(function.call)
    if parameters is None:
        return [arguments["samples"]], {}
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    args = [arguments[name] for name in _BY_POSITION[: len(by_position)]]
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p for p in by_name if p.default is p.empty and p.name not in arguments]
    missing += [p for p in by_position[len(_BY_POSITION) :] if p.default is p.empty]
    # The first parameter may have any name that does not look like a misspelt argument.
    own_name = bool(missing) and missing == by_name[:1] and not by_position and not _near(missing[0].name, arguments)
    if own_name and missing[0].kind is missing[0].POSITIONAL_OR_KEYWORD:
        args, by_name, missing = [arguments["samples"]], by_name[1:], []
    if missing:
        name = missing[0].name
        near = _near(name, arguments)
        hint = f"did you mean '{near}'? Known" if near else "known"
        inputs.fail(function, f"has an unknown parameter '{name}'; {hint} parameters: {', '.join(arguments)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return args, {name: value for name, value in arguments.items() if name not in {p.name for p in by_position}}
    return args, {p.name: arguments[p.name] for p in by_name if p.name in arguments}


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(call).parameters.values())
    except (ValueError, TypeError):  # some built-ins have no signature
        return None


def _near(name: str, arguments: Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(name, list(arguments), n=1)
    return _ALIASES.get(name) or (near[0] if near else None)


def _fail(function: UserFunction, inputs: CallInputs, error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    is_users = bool(frames) and Path(frames[-1].filename).parent != Path(__file__).parent
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if is_users else ""
    inputs.fail(function, f"raised {describe_error(error)}{at}", error)


def _fail_late(function: UserFunction, inputs: CallInputs) -> NoReturn:
    inputs.fail(
        function,
        f"did not return within run.reward_timeout_s = {function.timeout_s:g} seconds; raise this limit, or give the "
        "requests that the function makes a time limit of their own",
    )


def _start(
    functions: Sequence[UserFunction], awaitables: Mapping[int, Awaitable[Any]], pending: set[int]
) -> Future[dict[int, Any]]:
    """Start to await awaitables by function index; each index is removed from `pending` when its awaitable is done."""

    async def settle(i: int) -> Any:
        try:
            with awaited(f"awaited: {functions[i].name}"), same_defaults() as changes:
                result = await awaitables[i]
            return _Changes(changes[0]) if changes else result
        except (KeyboardInterrupt, SystemExit) as error:  # raised here, they would end the loop without a message
            return error
        finally:
            pending.discard(i)

    async def gather() -> dict[int, Any]:
        results = await asyncio.gather(*map(settle, awaitables), return_exceptions=True)
        return dict(zip(awaitables, results, strict=True))

    return asyncio.run_coroutine_threadsafe(gather(), _loop(os.getpid()))


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the event loop of this process; a forked child inherits no threads and starts a loop of its own."""
    loop = asyncio.new_event_loop()

    def work() -> None:
        torch.set_grad_enabled(False)
        loop.run_forever()

    threading.Thread(target=work, name=f"rlcore-rewards-{process}", daemon=True).start()
    return loop
