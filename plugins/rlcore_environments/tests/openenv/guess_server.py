"""An OpenEnv server with a guessing game: python guess_server.py PORT [KEY]. Run by a Python that has openenv.

With a key, it refuses sessions without the header `Authorization: Bearer KEY`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str


class Hint(Observation):
    text: str
    guesses: int = 0


class GuessGame(Environment[Guess, Hint, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    open = 0

    def __init__(self) -> None:
        super().__init__()
        GuessGame.open += 1
        self.secret, self.count = -1, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, highest: int = 8, **task: Any) -> Hint:
        self.secret, self.count = random.Random(f"{seed} {task}").randint(1, highest), 0
        return Hint(text=f"Guess a number from 1 to {highest}." + (f" Task {task}." if task else ""))

    def step(self, action: Guess, timeout_s: float | None = None, **given: Any) -> Hint:
        self.count += 1
        if action.message == "raise":
            raise ArithmeticError("no such number")
        if action.message == "open":
            return Hint(text=str(GuessGame.open))
        if action.message == "give up":
            return Hint(text="A pity.", done=True)
        digits = "".join(letter for letter in action.message if letter.isdigit())
        guess = int(digits or "0")
        if guess == self.secret:
            return Hint(text="Right.", reward=1.0, done=True, guesses=self.count, metadata={"guesses": self.count})
        return Hint(text="higher" if guess < self.secret else "lower", guesses=self.count)

    @property
    def state(self) -> State:
        return State(step_count=self.count)

    def close(self) -> None:
        GuessGame.open -= 1


def guarded(app: Any, key: str) -> Any:
    async def checked(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization")
        if scope["type"] == "websocket" and given != f"Bearer {key}".encode():
            await send({"type": "websocket.close", "code": 1008})
        else:
            await app(scope, receive, send)

    return checked


if __name__ == "__main__":
    app = create_fastapi_app(GuessGame, Guess, Hint, max_concurrent_envs=64)
    app = guarded(app, sys.argv[2]) if len(sys.argv) > 2 else app
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
