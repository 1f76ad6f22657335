"""Call a user's function with what its signature takes, wait for it if it is a coroutine, and blame it by name."""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import attrs

from rlcore.data.prompts import RESERVED_COLUMNS
from rlcore.errors import DataError, RewardError
from rlcore.profiling import awaited, phase
from rlcore.types import Prompt

_ALIASES = dict.fromkeys(("completion", "completions", "response", "responses"), "outputs")
_BY_POSITION = ("samples", "prompts", "outputs")


@attrs.frozen(eq=False)
class UserFunction:
    """Hold a function of the user's and what messages call it.

    Attributes:
        kind: "reward" or "metric".
        name: what it goes by in messages and metrics.
        call: the function itself.
        weight: what a reward is multiplied by in the total.
    """

    kind: str
    name: str
    call: Callable[..., Any]
    weight: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind} function '{self.name}'"


@attrs.frozen(eq=False)
class CallInputs:
    """Hold what functions are asked about, and where that happens.

    Attributes:
        arguments: every argument a function may take, by name: `samples`, `prompts`, `outputs`, `output_tokens`,
            `tokenizer`, and the columns.
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
        """Count the samples."""
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
        """Put prompts and outputs side by side, and the chosen ids where they are known.

        Args:
            prompts: B prompts.
            outputs: of these, or of those at `rows`.
            tokenizer: the policy's.
            where: for messages.
            output_tokens: the ids behind each output.
            rows: which prompts are asked about; all if left out. Columns are those of all prompts in either case, for a
                function that asks for one must get it even where these prompts lack it.

        Raises:
            DataError: a column of the prompts has a name that means something else to these functions.
        """
        names = list(dict.fromkeys(name for prompt in prompts for name in prompt.columns))
        indices, batch_size = range(len(prompts)) if rows is None else rows, len(prompts)
        prompts = [prompts[row] for row in indices]
        for name in names:
            if name in RESERVED_COLUMNS:
                raise DataError(
                    f"the prompts have a column '{name}', a name under which reward functions receive other things "
                    f"({', '.join(RESERVED_COLUMNS)}); rename the column"
                )
        arguments: dict[str, Any] = {
            "samples": [prompt.text + output for prompt, output in zip(prompts, outputs, strict=True)],
            "prompts": [prompt.text for prompt in prompts],
            "outputs": list(outputs),
            "tokenizer": tokenizer,
        }
        if output_tokens is not None:
            arguments["output_tokens"] = [list(tokens) for tokens in output_tokens]
        arguments |= {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
        return cls(arguments, indices, batch_size, where)

    def fail(self, function: UserFunction, problem: str, cause: BaseException | None = None) -> NoReturn:
        """Raise a RewardError that names the function and the batch."""
        batch = f"batch of {self.batch_size}"
        if self.size < self.batch_size:
            batch = f"{self.size} of a {batch}"
        place = f"{self.where}, {batch}" if self.where else batch
        raise RewardError(f"{function} ({place}) {problem}") from cause


@attrs.frozen(eq=False)
class Call:
    """Stand for functions that have been called, of which some may not have answered yet.

    Attributes:
        functions: F of them.
        inputs: what they were asked about.
        results: what each returned; where that is to be awaited, its answer is in `awaited` instead.
        awaited: the answers that are awaited, by the function's number; None where there are none.
    """

    functions: Sequence[UserFunction]
    inputs: CallInputs
    results: Sequence[Any]
    awaited: Future[dict[int, Any]] | None

    @classmethod
    def of(cls, functions: Sequence[UserFunction], inputs: CallInputs) -> Call:
        """Call each function; those that return something to await are awaited together, while none blocks another.

        They are awaited on an event loop that lives in a thread of its own as long as the process, so that clients keep
        their connections from call to call, and a notebook's running loop is no obstacle.

        Raises:
            RewardError: a function raised, or its signature asks for what is not there.
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
        return cls(functions, inputs, results, _awaiting(functions, late) if late else None)

    @property
    def is_done(self) -> bool:
        """Tell whether every function has answered, or failed."""
        return self.awaited is None or self.awaited.done()

    def cancel(self) -> None:
        """Wait for no answer any more."""
        if self.awaited is not None:
            self.awaited.cancel()

    def answers(self) -> list[Any]:
        """Wait for all answers; return one of each function.

        Raises:
            RewardError: a function raised.
        """
        answers = list(self.results)
        if self.awaited is not None:
            try:
                with phase("awaiting"):
                    late = self.awaited.result()
            except BaseException:
                self.cancel()
                raise
            for i, answer in late.items():
                if isinstance(answer, BaseException):
                    _raised(self.functions[i], self.inputs, answer)
                answers[i] = answer
        return answers


def _call(function: UserFunction, inputs: CallInputs) -> Any:
    args, kwargs = _arguments(function, inputs)
    try:
        with phase(function.name):
            return function.call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        _raised(function, inputs, error)


def _arguments(function: UserFunction, inputs: CallInputs) -> tuple[list[Any], dict[str, Any]]:
    # Each function gets lists of its own, so that none can change what another reads.
    arguments = {name: list(value) if isinstance(value, list) else value for name, value in inputs.arguments.items()}
    parameters = _parameters(function.call)
    if parameters is None:
        return [arguments["samples"]], {}
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    args = [arguments[name] for name in _BY_POSITION[: len(by_position)]]
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    lacking = [p for p in by_name if p.default is p.empty and p.name not in arguments]
    lacking += [p for p in by_position[len(_BY_POSITION) :] if p.default is p.empty]
    # A first parameter may bear any name that does not look like one of ours misspelt.
    own_name = bool(lacking) and lacking == by_name[:1] and not by_position and not _near(lacking[0].name, arguments)
    if own_name and lacking[0].kind is lacking[0].POSITIONAL_OR_KEYWORD:
        args, by_name, lacking = [arguments["samples"]], by_name[1:], []
    if lacking:
        name = lacking[0].name
        near = _near(name, arguments)
        hint = f"did you mean '{near}'? There" if near else "there"
        inputs.fail(function, f"asks for '{name}', which is not there; {hint} are {', '.join(arguments)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return args, {name: value for name, value in arguments.items() if name not in {p.name for p in by_position}}
    return args, {p.name: arguments[p.name] for p in by_name if p.name in arguments}


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(call).parameters.values())
    except (ValueError, TypeError):  # some built-ins do not tell
        return None


def _near(name: str, arguments: Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(name, list(arguments), n=1)
    return _ALIASES.get(name) or (near[0] if near else None)


def _raised(function: UserFunction, inputs: CallInputs, error: BaseException) -> NoReturn:
    if not isinstance(error, (Exception, asyncio.CancelledError)):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames and frames[-1].filename != __file__ else ""
    inputs.fail(function, f"raised {type(error).__name__}: {error}{at}", error)


def _awaiting(functions: Sequence[UserFunction], awaitables: Mapping[int, Awaitable[Any]]) -> Future[dict[int, Any]]:
    async def settle(i: int) -> Any:
        try:
            with awaited(f"awaited: {functions[i].name}"):
                return await awaitables[i]
        except (KeyboardInterrupt, SystemExit) as error:  # these would end the loop, and nobody would hear of it
            return error

    async def gather() -> dict[int, Any]:
        answers = await asyncio.gather(*map(settle, awaitables), return_exceptions=True)
        return dict(zip(awaitables, answers, strict=True))

    return asyncio.run_coroutine_threadsafe(gather(), _loop(os.getpid()))


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the loop of this process; a forked child, which inherits no threads, starts its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"rlcore-rewards-{process}", daemon=True).start()
    return loop
