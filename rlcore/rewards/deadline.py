"""Time limits of calls: the caller goes on, and the process can end, even if the called function never returns."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch

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
