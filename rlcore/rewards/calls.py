"""Call user functions, await coroutines, and name the function in errors.

A call has a time limit: the caller goes on, and the process can end, even if the called function never returns.
Gradients are disabled in all calls, because reward functions may be models.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs
import torch

from rlcore.components import describe_error
from rlcore.data.user_code import same_defaults
from rlcore.profiling import awaited, phase
from rlcore.rewards.call_inputs import CallInputs, UserFunction

END_AFTER_S = 5.0
"""How long the interpreter may take to exit after a late call; then the process is ended without its consent."""


class CallTooLong(Exception):
    """A call did not return within its time limit."""


def call_within(limit_s: float, call: Callable[[], Any]) -> Any:
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
