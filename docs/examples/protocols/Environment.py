"""A game in which every letter of a hidden word that a turn names is worth a tenth."""

import random

from rlcore.protocols import Step, Turn

WORDS = ("river", "stone", "cloud")


class HiddenWord:
    def reset(self, row, *, seed):
        self.left = set(random.Random(seed).choice(row.get("words", WORDS)))  # noqa: S311  a game
        return "Name a letter of the word."

    def step(self, turn):
        found = self.left & set(turn.text.lower())
        self.left -= found
        return Step(
            f"{len(found)} right, {len(self.left)} left.", reward=len(found) / 10, done=not self.left,
            info={"success": not self.left},
        )  # fmt: skip


game = HiddenWord()
assert game.reset({"words": ["aha"]}, seed=3) == "Name a letter of the word."
assert game.step(Turn("b", 0)) == Step("0 right, 2 left.", reward=0.0, info={"success": False})
assert game.step(Turn("h, a", 1)) == Step("2 right, 0 left.", 0.2, done=True, info={"success": True})
