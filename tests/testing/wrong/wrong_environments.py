"""Environments, one for each law that they break, and one that breaks none."""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
from pathlib import Path
from typing import Any

from rlcore.protocols import Step, Turn


class Right:
    """It counts down from a number that its seed gives."""

    max_turns = 6
    example_row: dict[str, Any] = {"picture": object()}  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        self.left = random.Random(seed).randint(2, 5)
        return f"{self.left} left"

    def step(self, turn: Turn) -> Any:
        self.left -= 1
        return Step(f"{self.left} left", reward=1.0 * (turn.text == "1"), done=self.left == 0)

    def close(self) -> None:
        pass


class NotANumber(Right):
    def step(self, turn: Turn) -> Any:
        return Step("on", reward=float("nan"))


class Raising(Right):
    def step(self, turn: Turn) -> Any:
        return Step(f"{int(turn.text)}")


_DRAWS = random.Random(0)


class OwnRandom(Right):
    """Every episode has other numbers, whatever its seed."""

    def reset(self, row: Any, *, seed: int) -> str:
        self.left = _DRAWS.randint(2, 10**6)
        return f"{self.left} left"


class Hashing(Right):
    def reset(self, row: Any, *, seed: int) -> str:
        self.left = 2
        return f"{hash('door')}"


class Shared(Right):
    """All episodes count down the same number."""

    state: dict[str, int] = {}  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        self.state["left"] = 5
        return "5 left"

    def step(self, turn: Turn) -> Any:
        self.state["left"] -= 1
        return Step(f"{self.state['left']} left", done=self.state["left"] <= 0)


class GlobalSeed(Right):
    """It seeds the generator that everybody uses."""

    def reset(self, row: Any, *, seed: int) -> str:
        random.seed(seed)
        self.left = random.randint(2, 5)
        return f"{self.left} left"


class Unclosable(Right):
    def close(self) -> None:
        self.left += 1  # there is none before reset


class Endless(Right):
    max_turns = 0

    def step(self, turn: Turn) -> Any:
        return "more"


class Waiting(Right):
    """Its episodes count together, so that threads see the numbers of one another."""

    seen: list[int] = []  # noqa: RUF012

    def step(self, turn: Turn) -> Any:
        import time

        self.seen.append(1)
        alone = len(self.seen)
        time.sleep(0.02)
        crowded = len(self.seen) > alone
        return Step("crowded" if crowded else "alone", done=turn.index == 2)


class Dated(Right):
    """Its door opens on some days of the week."""

    def step(self, turn: Turn) -> Any:
        return Step(f"closed on day {dt.date.today().weekday()}", done=True)  # noqa: DTZ011


class Guessing(Right):
    """It asks for a number that its seed gives, and the reward of the right one is not a number."""

    @staticmethod
    def example_turns_of(row: Any, seed: int) -> list[str]:
        return ["no idea", str(random.Random(seed).randint(10**6, 10**7))]

    def reset(self, row: Any, *, seed: int) -> str:
        self.number = random.Random(seed).randint(10**6, 10**7)
        return "which number?"

    def step(self, turn: Turn) -> Any:
        found = turn.text == str(self.number)
        return Step("no", reward=float("nan") if found else 0.0, done=found)


class Counting(Right):
    """Note in the row how often it was played."""

    example_row: dict[str, Any] = {"played": []}  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        row["played"].append(seed)
        return super().reset(row, seed=seed)


class OfFirstRank(Right):
    def reset(self, row: Any, *, seed: int) -> str:
        return super().reset(row, seed=seed) + os.environ.get("RANK", "")


class Noting(Right):
    def step(self, turn: Turn) -> Any:
        Path("turns.txt").write_text(turn.text)
        return super().step(turn)


class Ticking(Right):
    """Start a thread for each episode, which goes on for a minute."""

    def reset(self, row: Any, *, seed: int) -> str:
        threading.Thread(target=threading.Event().wait, args=(60,), daemon=True, name="ticker").start()
        return super().reset(row, seed=seed)
