"""Check the numbers that reward and metric functions return, and call metric functions.

Also in this file: call user functions, await coroutines, and name the function in errors.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import functools
import inspect
import itertools
import math
import numbers
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import attrs
import numpy as np
import torch

from rlcore.components import describe_error
from rlcore.data.user_code import same_defaults
from rlcore.profiling import awaited, phase
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.chosen_rewards import resolve
from rlcore.safe_text import shorten
from rlcore.types import Prompt

END_AFTER_S = 5.0
"""How long the interpreter may take to exit after a late call; then the process is ended without its consent."""


class CallTooLong(Exception):
    """A call did not return within its time limit."""


def call_within(limit_s: float, call: Callable[[], object]) -> Any:
    """Call a function in a thread of its own, and return or raise what it does.

    The thread has the caller's context variables, gradient mode and device. Python cannot end a thread: a function that
    is too late runs on until it returns or the process ends. Signals are handled while this waits.

    Raises:
        CallTooLong: the function did not return within `limit_s` seconds.
    """
    result: Future[Any] = Future()
    context, grad = contextvars.copy_context(), torch.is_grad_enabled()
    device = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None

    def work() -> None:
        torch.set_grad_enabled(grad)
        if device is not None:
            torch.accelerator.set_device_index(device)
        try:
            result.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            result.set_exception(error)

    thread = threading.Thread(target=work, name="rlcore-timed-reward", daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
    finally:  # also after Ctrl-C
        if thread.is_alive():
            end_with_interpreter(thread.is_alive)
    if not result.done():
        raise CallTooLong
    return result.result()


def end_with_interpreter(is_running: Callable[[], bool]) -> None:
    """Exit with code 1 if, `END_AFTER_S` after the interpreter began to exit, the process and a late call still run.

    A daemon thread ends with the process. But a late call may wait for threads that it started itself, such as those of
    a ThreadPoolExecutor, and the interpreter waits for these before it exits.
    """
    exits = threading.Event()
    # Executors join their threads in a callback of this kind, before the main thread counts as ended and before atexit.
    threading._register_atexit(exits.set)  # type: ignore[attr-defined]  # noqa: SLF001

    def watch() -> None:
        exits.wait()
        time.sleep(END_AFTER_S)
        if is_running():
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # such as a closed pipe
                    stream.flush()
            os._exit(1)

    threading.Thread(target=watch, name="rlcore-deadline", daemon=True).start()


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
        results: list[object] = []
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

    def _settled(self, running: Future[dict[int, Any]]) -> dict[int, object]:
        futures.wait([running], None if self.deadline is None else max(0.0, self.deadline - time.monotonic()))
        if self.pending and not running.done():
            end_with_interpreter(lambda: True)
            late = [self.functions[i] for i in sorted(self.pending)]
            _fail_late(attrs.evolve(late[0], name="', '".join(function.name for function in late)), self.inputs)
        return running.result()


def _call(function: UserFunction, inputs: CallInputs) -> Any:
    args, kwargs = inputs.arguments_of(function)
    call = functools.partial(function.call, *args, **kwargs)
    try:
        with phase(function.name), torch.no_grad(), same_defaults() as changes:
            result = call() if function.timeout_s is None else call_within(function.timeout_s, call)
    except CallTooLong:
        _fail_late(function, inputs)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
        _fail(function, inputs, error)
    return _Changes(changes[0]) if changes else result


def _fail(function: UserFunction, inputs: CallInputs, error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        raise error
    inputs.fail(function, f"raised {describe_error(error)}{_place(error)}{inputs.received(function, error)}", error)


def _place(error: BaseException) -> str:
    """Return where the user's code raised, as ` at FILE:LINE`, or where a library did that no file of theirs called."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parent)
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    called = [frame for frame in frames if not frame.filename.startswith(own)]
    users = [frame for frame in called if not frame.filename.startswith(libraries)]
    for frame in reversed(users or called):
        return f" at {frame.filename}:{frame.lineno}"
    return ""


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

    async def settle(i: int) -> object:
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


LARGEST_REWARD = torch.finfo(torch.float32).max


def read_rewards(
    result: object, function: UserFunction, inputs: CallInputs, num_actions: Sequence[int]
) -> list[float | list[float] | None]:
    """Return one entry for each sample: its reward, a list with one reward for each chosen token, or None.

    Raises:
        RewardError: an entry is not a finite number, or their count differs from the number of samples or tokens.
    """
    values: list[float | list[float] | None] = []
    for i, item, count in zip(inputs.indices, _items(result, function, inputs), num_actions, strict=True):
        row = _without_arrays(item, f" for sample {i}", function, inputs)
        if not isinstance(row, (list, tuple)):
            values.append(_number(row, f"sample {i}", function, inputs))
            continue
        if len(row) != count and "output_tokens" not in inputs.arguments:
            inputs.fail(function, f"returned {len(row)} numbers for sample {i}; return one number per sample")
        if len(row) != count:
            inputs.fail(
                function,
                f"returned {len(row)} dense rewards for sample {i}, but the policy chose {count} tokens there; return "
                "one number per sample, or one for each of its output_tokens, EOS included",
            )
        dense = [_number(value, f"sample {i}, token {t}", function, inputs) for t, value in enumerate(row)]
        values.append([0.0 if value is None else value for value in dense])
    return values


def read_metrics(result: object, function: UserFunction, inputs: CallInputs) -> dict[str, list[float | None]]:
    """Return, for each metric, one number for each sample; None where the function returned None.

    Raises:
        RewardError: `result` is not a mapping from names to numbers, or a count differs from the number of samples.
    """
    if not isinstance(result, Mapping):
        inputs.fail(function, f"returned {shorten(result)}; return a dict from names to {inputs.size} numbers each")
    metrics: dict[str, list[float | None]] = {}
    for key, value in result.items():
        if not isinstance(key, str):
            inputs.fail(function, f"named a metric {key!r} ({type(key).__name__}); names must be strings")
        labelled = attrs.evolve(function, name=f"{function.name}', metric '{key}")
        items = zip(inputs.indices, _items(value, labelled, inputs), strict=True)
        metrics[key] = [_number(item, f"sample {i}", labelled, inputs) for i, item in items]
    return metrics


def _items(result: object, function: UserFunction, inputs: CallInputs) -> list[object]:
    """Return the result of a function as a list with one entry per sample."""
    advice = f"return {inputs.size} numbers, one per sample in the samples' order"
    result = _without_arrays(result, "", function, inputs)
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        inputs.fail(function, f"returned {shorten(result)} ({type(result).__name__}); {advice}")
    try:
        items = list(itertools.islice(result, inputs.size + 1))  # it may be endless
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's generator may raise anything
        inputs.fail(function, f"returned {shorten(result)}, and reading it raised {describe_error(error)}", error)
    if len(items) != inputs.size:
        endless = f"more than {inputs.size}" if len(items) > inputs.size else len(items)
        count = len(result) if isinstance(result, Sized) else endless
        inputs.fail(function, f"returned {count} values for {inputs.size} samples; {advice}")
    return items


def _without_arrays(value: object, where: str, function: UserFunction, inputs: CallInputs) -> object:
    """Convert tensors and arrays to numbers and lists; a tensor without readable values ends the run."""
    if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value
    try:
        return value.tolist()
    except Exception as error:  # noqa: BLE001  each kind of tensor raises its own error
        kind = f"{value.layout} tensor on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
        inputs.fail(
            function,
            f"returned a {kind}{where}, whose numbers cannot be read ({describe_error(error)}); return numbers, or a "
            "dense tensor or array of them",
            error,
        )


def _number(value: Any, where: str, function: UserFunction, inputs: CallInputs) -> float | None:
    if value is None:
        return None
    value = _without_arrays(value, f" for {where}", function, inputs)
    is_number = isinstance(value, (numbers.Real, decimal.Decimal))
    try:
        number = float(value) if is_number else math.nan
    except Exception:  # noqa: BLE001  an integer too large for a float, a signalling NaN, a class of the user's
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        kind = "not a finite number" if is_number else f"a {type(value).__name__}, not a number"
        advice = "return numbers, or None for a sample without a reward"
        inputs.fail(function, f"returned {shorten(value)} for {where}, which is {kind}; {advice}")
    return number


def call_metric(
    metric_fn: object,
    prompts: Sequence[Prompt],
    outputs: Sequence[str],
    tokenizer: Tokenizer | None,
    *,
    where: str = "",
    timeout_s: float | None = None,
    output_tokens: Sequence[Sequence[int]] | None = None,
    rows: Sequence[int] | None = None,
    further: Mapping[str, Sequence[object]] = MappingProxyType({}),
) -> dict[str, list[float | None]]:
    """Call a metric function on completions, with the same arguments and time limit as a reward function.

    Args:
        metric_fn: the function.
        prompts: B prompts.
        outputs: the output of each prompt, or of each prompt at `rows`.
        tokenizer: passed to a function that takes it.
        where: the place in the run, for messages.
        timeout_s: seconds that the call may take; None: any number.
        output_tokens: the chosen ids of each output, EOS included; None if they are not known.
        rows: indices of the K prompts in the call; all B by default.
        further: B values of each further argument, such as the `turns` of episodes.

    Returns:
        K numbers for each metric; None where the function returned None.

    Raises:
        RewardError: the function raised, or did not return a mapping from names to B numbers.
    """
    inputs = CallInputs.of(prompts, outputs, tokenizer, where, output_tokens=output_tokens, rows=rows, further=further)
    return _measure(metric_fn, inputs, timeout_s)


def call_metric_on(
    metric_fn: object,
    prompts: Sequence[Prompt],
    outputs: Mapping[str, object],
    *,
    where: str = "",
    timeout_s: float | None = None,
) -> dict[str, list[float | None]]:
    """Call a metric function on B outputs that are no text, with the arguments of `Rewards.score`.

    Raises:
        RewardError: the function raised, or did not return a mapping from names to B numbers.
    """
    return _measure(metric_fn, CallInputs.about(prompts, outputs, where), timeout_s)


def _measure(metric_fn: object, inputs: CallInputs, timeout_s: float | None) -> dict[str, list[float | None]]:
    name, load = resolve(metric_fn, "metric_fn")
    function = UserFunction("metric", name, load(), timeout_s=timeout_s)
    (result,) = Call.of([function], inputs).wait()
    return read_metrics(result, function, inputs)
