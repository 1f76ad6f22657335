"""A factory whose games share a list of words and have rows of their own."""

import rlcore
from rlcore.protocols import Step


class Spelling:
    """One game: write the word that is asked for."""

    def reset(self, row, *, seed):
        self.word = row["word"]
        return f"Write {self.word}."

    def step(self, turn):
        return Step(reward=float(self.word in turn.text), done=True)


class SpellingGames:
    max_turns = 1

    def __init__(self, words):
        self.words = words

    def make(self):
        return Spelling()

    def rows(self, split):
        return [{"word": word} for word in self.words]


if __name__ == "__main__":
    result = rlcore.train(
        "gpt2",
        trainer={"name": "ppo", "rollouts": 4, "batch_size": 4},
        environment=SpellingGames(["cat", "dog"]),
        gen={"max_new_tokens": 4},
        run={"steps": 1, "name": "spelling"},
    )
    assert result.metrics["episode/turns"] == 1
