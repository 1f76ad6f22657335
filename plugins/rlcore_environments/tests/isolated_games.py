"""An environment for processes of their own; it imports nothing of rlcore."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time

max_calls: list[int] = []


class Dice:
    """It names its process, and dies, raises or prints when it is asked to."""

    max_turns = 3

    @staticmethod
    def rows(split: str) -> list[dict[str, int]]:
        return [{"seed": k} for k in range(3)] if split == "train" else [{"seed": 9}]

    def reset(self, row: dict[str, int], *, seed: int) -> str:
        self.seed = seed
        return "go"

    async def step(self, turn: object) -> object:
        text = turn.text  # type: ignore[attr-defined]
        if text == "die":
            os.write(2, b"out of luck\n")
            os._exit(3)
        if text == "exit":
            sys.exit(4)
        if text == "raise":
            raise ValueError("no such door")
        if text == "print":
            print("this is no answer")
            sys.stdout.flush()
        return {"messages": "on", "reward": float(len(text)), "done": turn.index == 1, "info": {"pid": os.getpid()}}  # type: ignore[attr-defined]


class Asking(Dice):
    """It reads its standard input, as Python, as a file and in a program of its own."""

    async def step(self, turn: object) -> object:
        found = [sys.stdin.read(), os.read(0, 100).decode()]
        program = await asyncio.create_subprocess_exec("cat", stdout=asyncio.subprocess.PIPE)
        found.append((await program.communicate())[0].decode())
        return {**await super().step(turn), "info": {"found": found}}  # type: ignore[dict-item]


class Overstated(Dice):
    max_turns = "3"  # type: ignore[assignment]


class Listed(Dice):
    rows = [{"seed": 1}]  # type: ignore[assignment]  # noqa: RUF012


class Stuck(Dice):
    """It stops its process, or blocks the event loop of it, when it is asked to, or hangs in closing."""

    def __init__(self) -> None:
        self.blocks_close = False

    async def step(self, turn: object) -> object:
        text = turn.text  # type: ignore[attr-defined]
        if text == "stop":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # before this thread goes on
        if text == "block":
            time.sleep(900)  # noqa: ASYNC251  it blocks on purpose
        self.blocks_close = text == "blocks"
        return await super().step(turn)

    def close(self) -> None:
        if self.blocks_close:
            time.sleep(900)


class Pairs:
    """It answers with a pair of a text and rewards by name, and tells the types of the row."""

    def reset(self, row: dict[str, object], *, seed: int) -> str:
        return " ".join(f"{name}={value!r}" for name, value in sorted(row.items()))

    def step(self, turn: object) -> object:
        return "next", {"a": 1, "b": 2}


class Unfinished:
    """It has no `step`."""

    def reset(self, row: dict[str, object], *, seed: int) -> str:
        return "go"


class Broken(Pairs):
    """Its `reset` raises."""

    def reset(self, row: dict[str, object], *, seed: int) -> str:
        raise ValueError("no dice")


class Signless(Pairs):
    """Its `step` takes no turn."""

    def step(self) -> object:  # type: ignore[override]
        return "next"


class Truths(Pairs):
    """It answers with what the policy writes: a truth value, a pair with one, or five values."""

    def reset(self, row: dict[str, object], *, seed: int) -> str:
        return "go"

    def step(self, turn: object) -> object:
        answers: dict[str, object] = {
            "a": True, "b": ("next", False), "c": ("next", 1.0, True, False, {}), "d": {"reward": True, "done": True},
        }  # fmt: skip
        return answers[turn.text]  # type: ignore[attr-defined]


class Global(Pairs):
    """Its numbers are those of the generator that all share."""

    def reset(self, row: dict[str, object], *, seed: int) -> str:
        random.seed(seed)
        return "go"

    def step(self, turn: object) -> object:
        return {"messages": "on", "reward": random.random(), "done": turn.index == 1}  # type: ignore[attr-defined]


class Keys(Pairs):
    """The keys of its info are of several kinds, also within a value."""

    def step(self, turn: object) -> object:
        return {"reward": 1.0, "done": True, "info": {1: 2, (1, 2): 3, None: 4, "at": {"x": {(0, 1): True}}}}


class Connected:
    """It has a connection of SQLite, which only the thread that opened it may use, and state of that thread."""

    state = threading.local()

    def reset(self, row: object, *, seed: int) -> str:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table said (text)")
        self.state.said = self
        return "go"

    def step(self, turn: object) -> object:
        assert self.state.said is self
        self.connection.execute("insert into said values (?)", (turn.text,))  # type: ignore[attr-defined]
        (count,) = self.connection.execute("select count(*) from said").fetchone()
        return {"messages": f"{count} rows", "reward": 1.0, "done": count == 3}

    def close(self) -> None:
        self.connection.close()


class Alarmed:
    """It limits its time by a signal, which only the main thread may handle."""

    def reset(self, row: object, *, seed: int) -> str:
        self.alarm()
        return "go"

    def step(self, turn: object) -> object:
        self.alarm()
        return {"messages": "on", "reward": 1.0, "done": turn.index == 1}  # type: ignore[attr-defined]

    def alarm(self) -> None:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(60)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
