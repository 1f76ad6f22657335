"""The process of isolated environments: it reads requests as lines of JSON, and answers each with a line of JSON.

It runs in any Python, also in one without rlcore, so that it imports nothing but the standard library and the
environment. What an environment prints goes to the standard error output.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import importlib
import inspect
import json
import os
import pickle
import queue
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FIELDS = ("messages", "reward", "done", "truncated", "info")
FURTHER = ("stop",)
"""Fields of a step that not every class has."""
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "reset": ("reset(row, seed=...)", ({},), {"seed": 0}), "step": ("step(turn)", (None,), {}),
}  # fmt: skip
"""How the methods of an environment are called: for messages, and the arguments."""


STATED: dict[str, Any] = {
    "max_turns": 0, "concurrency": 0, "replayable": True, "gives_rewards": True, "example_turns": (),
    "reward_names": (),
}  # fmt: skip
"""Attributes with which an environment's author states something about it, and their defaults."""


class BadRows(Exception):
    """A method `rows` returned something else than rows."""


class OwnThread:
    """A thread in which the calls of an episode run, one after another, so that they find what belongs to a thread.

    It starts with the first call. A call that starts before the one before it has ended runs in another thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._runs = False

    def start(self, work: Callable[[Callable[[], None]], None]) -> threading.Thread:
        """Start a call, and return its thread; `work` receives a function that it calls when it has ended.

        Raises:
            RuntimeError: no thread can be started.
        """
        with self._lock:
            if self._runs:
                thread = threading.Thread(target=work, args=(_nothing,), name=self._name, daemon=True)
                thread.start()
                return thread
            if self._thread is None:
                self._thread = threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True)
                self._thread.start()
            self._runs = True
            self._calls.put(partial(work, partial(self._release, self._calls)))
            return self._thread

    def replace(self) -> None:
        """Let later calls run in a new thread; the present one ends with its call."""
        with self._lock:
            self._calls.put(None)
            self._calls, self._thread, self._runs = queue.SimpleQueue(), None, False

    def end(self) -> None:
        """End the thread when its calls have ended."""
        self._calls.put(None)

    __del__ = end

    def _release(self, calls: object) -> None:
        with self._lock:
            if calls is self._calls:
                self._runs = False


def _serve(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # so that the thread holds nothing of an episode while it waits


def _nothing() -> None:
    """Release nothing."""


class RemoteTurn:
    """What the policy wrote; the attributes are those of `rlcore.protocols.Turn`."""

    def __init__(self, text: str, index: int, truncated: bool, tool_calls: list[Any]) -> None:
        self.text, self.index, self.truncated, self.tool_calls = text, index, truncated, tuple(tool_calls)


class Server:
    """Holds the environments of all episodes of this process."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.environments: dict[int, Any] = {}
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        source = _load(given)
        if isinstance(source, type) and not hasattr(source, "step") and hasattr(source, "make"):
            source = source()
        self.source = source
        self.make = source if isinstance(source, type) or not hasattr(source, "make") else source.make

    def call(self, method: str, episode: int, arguments: dict[str, Any]) -> Any:
        """Answer one request."""
        if method == "ping":  # through the loop, which a coroutine may block
            return asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result()
        if method == "describe":
            return {
                "tools": list(getattr(self.source, "tools", None) or ()),
                **{name: getattr(self.source, name, default) for name, default in STATED.items()},
                "source": _fingerprint(self.source),
                "wrong": wrong_methods(self.make) if isinstance(self.make, type) else "",
                "has_rows": getattr(self.source, "rows", None) is not None,
                "wrong_rows": wrong_rows(self.source),
                "name": getattr(self.source, "__name__", type(self.source).__name__),
            }
        if method == "rows":
            return read_rows(self.source.rows, arguments["split"], self._finished)
        if method == "reset":
            made = self.environments[episode] = self.make()
            if misfit := describe_misfit(made):
                raise TypeError(f"it made {misfit}")
            return self._finished(made.reset(arguments["row"], seed=arguments["seed"]))
        if method == "step":
            return self._finished(self.environments[episode].step(RemoteTurn(**arguments)))
        environment = self.environments.pop(episode, None)
        close = getattr(environment, "close", None)
        return self._finished(close()) and None if callable(close) else None

    def _finished(self, found: object) -> Any:
        if not inspect.isawaitable(found):
            return found

        async def wait() -> Any:
            try:
                return await found
            except (SystemExit, KeyboardInterrupt) as error:  # which would end the loop
                raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result()


def _fingerprint(source: object) -> str:
    """Return a digest of the module that defines an environment; comments and formatting do not change it."""
    module = getattr(source, "__module__", None) or type(source).__module__
    try:
        text = ast.unparse(ast.parse(inspect.getsource(sys.modules[module])))
    except (OSError, TypeError, KeyError, SyntaxError):
        return "no source"
    return f"module source {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _load(given: dict[str, Any]) -> Any:
    if "pickle" in given:
        return pickle.loads(base64.b64decode(given["pickle"]))  # noqa: S301  this run wrote it
    module, _, path = given["reference"].partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _plain(value: object, method: str) -> Any:
    """Return an answer with which JSON and the parent can work: steps as mappings, pairs as mappings of their parts."""
    if all(hasattr(value, name) for name in FIELDS):
        return {name: getattr(value, name) for name in (*FIELDS, *FURTHER) if hasattr(value, name)}
    if method == "step" and isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], bool):
        return {"messages": value[0], "reward": value[1]}
    return value


def plain_value(value: Any) -> object:
    """Return a plain value in place of one that JSON does not know: a number or list of numpy, a mapping, or a text."""
    if isinstance(value, type):
        return str(value)
    for method in ("tolist", "items"):
        if hasattr(value, method):
            return plain_keys(dict(value.items())) if method == "items" else value.tolist()
    return list(value) if isinstance(value, (set, frozenset, tuple)) else str(value)


def plain_keys(value: object) -> Any:
    """Return a value in whose mappings every key is a text, as JSON wants it."""
    if isinstance(value, dict):
        return {str(key): plain_keys(each) for key, each in value.items()}
    return list(map(plain_keys, value)) if isinstance(value, (list, tuple)) else value


def describe_misfit(made: object) -> str:
    """Return what is wrong with an object that has not the methods of an environment; empty if it has them."""
    missing = [name for name in CALLS if not callable(getattr(made, name, None))]
    what = f"no method {' and no '.join(missing)}" if missing else wrong_methods(made)
    return f"an object of {type(made).__name__}, which has {what}" if what else ""


def wrong_methods(made: object) -> str:
    """Return which method of an object or a class cannot be called as those of an environment are; empty if all can."""
    for name, (form, arguments, named) in CALLS.items():
        method = getattr(made, name, None)
        is_plain = isinstance(made, type) and inspect.isfunction(inspect.getattr_static(made, name, None))
        try:
            signature = inspect.signature(method)  # type: ignore[arg-type]  # a TypeError if there is none
        except (TypeError, ValueError):
            continue
        try:
            signature.bind(*([made] if is_plain else []), *arguments, **named)
        except TypeError as error:
            plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
            return f"a method {name}{inspect.Signature(plain)}, and it is called as {form} ({error})"
    return ""


def wrong_rows(source: object) -> str:
    """Return what is wrong with the attribute `rows` of an environment; empty if it can be called with a split."""
    rows = getattr(source, "rows", None)
    if rows is None:
        return ""
    if not callable(rows):
        return (
            f"rows = {rows!r:.60} ({type(rows).__name__}), which is no method; write a static method rows(split) that "
            "returns the rows to train on for 'train', and those to evaluate on, or None, for 'eval'"
        )
    try:
        signature = inspect.signature(rows)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind("train")
    except TypeError as error:
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        of_class = " on the class, before there is an object" if isinstance(source, type) else ""
        return (
            f"a method rows{inspect.Signature(plain)}, and it is called as rows(split){of_class} ({error}); make it a "
            "static method with this one parameter"
        )
    return ""


def read_rows(rows: Any, split: str, finish: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a split as mappings; None if there are none.

    Args:
        rows: the method `rows`, plain or a coroutine; it returns or yields rows.
        split: `train` or `eval`.
        finish: returns the result of a coroutine, and other values as they are.

    Raises:
        BadRows: it returned something else.
    """
    found = rows(split)
    found = finish(_collect(found) if inspect.isasyncgen(found) else found)
    if found is None:
        return None
    if isinstance(found, (str, bytes, dict)) or not hasattr(found, "__iter__"):
        raise BadRows(
            f"rows({split!r}) returned {found!r:.80} ({type(found).__name__}), which is no list of rows; return one "
            "mapping for each episode of a pass, such as [{'level': 1}, {'level': 2}]"
        )
    read = []
    for i, row in enumerate(found):
        if not hasattr(row, "keys"):
            raise BadRows(
                f"rows({split!r})[{i}] is {row!r:.80} ({type(row).__name__}), which is no mapping of names to values, "
                "such as {'level': 1}"
            )
        read.append(dict(row))
    return read


async def _collect(rows: Any) -> list[Any]:
    return [row async for row in rows]


def place_of(error: BaseException) -> str:
    """Return where the code of an environment raised, as ` at FOLDER/FILE:LINE`; empty if none of its files did."""
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent != Path(__file__).parent and not frame.filename.startswith((*libraries, "<")):
            return f" at {file.parent.name}/{file.name}:{frame.lineno}"
    return ""


def main() -> None:
    """Answer the requests in the standard input until it ends; the environment has an empty one."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # so that an environment that reads its standard input reads no requests
    os.close(nothing)
    os.dup2(2, 1)
    lock = threading.Lock()
    first = json.loads(requests.readline())
    sys.path[:1] = first["path"]  # in place of the folder of this file
    sys.path.append(first["here"])  # last, so that it shadows no installed module

    def say(answer: dict[str, object]) -> None:
        with lock:
            answers.write(json.dumps(plain_keys(answer), default=plain_value) + "\n")
            answers.flush()

    try:
        server = Server(first)
    except BaseException as error:  # noqa: BLE001  the parent reports it
        say({"id": 0, "error": f"{type(error).__name__}: {error}"})
        return
    say({"id": 0, "result": None})

    def answer(request: dict[str, Any], release: Callable[[], None] = _nothing) -> None:
        calls = sys.modules.get("rlcore_environments.calls")  # of tools, which may take longer than a call
        if calls is not None:
            calls.set_allowance(lambda seconds: say({"id": request["id"], "more": seconds}))
            calls.runs_inline(threading.current_thread() is threading.main_thread())
        try:
            method = request["method"]
            result = _plain(server.call(method, request["episode"], request["arguments"]), method)
            told = {"id": request["id"], "result": result}
        except BaseException as error:  # noqa: BLE001  the parent reports it
            told = {"id": request["id"], "error": f"{type(error).__name__}: {error}{place_of(error)}"}
        release()
        try:
            say(told)
        except (TypeError, ValueError, RecursionError) as error:  # what JSON cannot carry
            say({"id": request["id"], "error": f"{type(error).__name__}: {error}"})

    _answer_all(requests, answer, in_main=first.get("thread") == "main")


def _answer_all(requests: Any, answer: Callable[..., None], *, in_main: bool) -> None:
    """Answer requests until there are none: those of an episode in its thread, or all in the main one."""
    threads: dict[int, OwnThread] = {}
    main: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    runs = threading.Event()  # a call in the main thread

    def run(request: dict[str, Any]) -> None:
        answer(request, runs.clear)

    def read() -> None:
        for line in requests:
            request = json.loads(line)
            episode, method = request["episode"], request["method"]
            if method not in ("reset", "step", "close"):
                threading.Thread(target=answer, args=(request,), daemon=True).start()
            elif not in_main:
                thread = threads.setdefault(episode, OwnThread("rlcore-episode"))
                thread.start(partial(answer, request))
                if method == "close":
                    threads.pop(episode).end()
            elif runs.is_set() and method == "close":  # the call that runs may never return
                threading.Thread(target=answer, args=(request,), daemon=True).start()
            else:
                runs.set()
                main.put(partial(run, request))
        main.put(None)

    threading.Thread(target=read, name="rlcore-requests", daemon=True).start()
    _serve(main)


if __name__ == "__main__":
    main()
