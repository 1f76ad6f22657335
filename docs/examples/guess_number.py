"""Learn to guess a number from 1 to 7 in three guesses, from a reward at the end alone.

The policy, a tiny model with random weights, writes one digit a turn; the environment answers "h" (higher) or "l"
(lower). Only binary search (4, then 2 or 6, then what is left) always succeeds, so the best mean return is 1; digits at
random find the number in .37 of the episodes. Run `python guess_number.py [SEED] [TRAINER] [GAME]`.

In the game `soon` there are four guesses, and each wrong one takes a quarter from the reward.
"""

from __future__ import annotations

import sys
from typing import Any

import attrs
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore
from rlcore.protocols import Step, Turn

WORDS = ["<pad>", "</s>", "?", "h", "l", "=", "!", *"1234567"]


class GuessNumber:
    """A number is to be found in three guesses; the reward, 1 or 0, comes at the end."""

    max_turns = 3

    def reset(self, row: dict[str, Any], *, seed: int) -> str:  # noqa: ARG002  the row has the number
        """Hide the number of the row."""
        self.secret = row["secret"]
        return "?"

    def step(self, turn: Turn) -> Step:
        """Answer a guess."""
        guess = int(turn.text) if turn.text.isdigit() else 0
        if guess == self.secret:
            return Step(reward=1.0, done=True, info={"success": True})
        over = turn.index == self.max_turns - 1
        return Step("h" if guess < self.secret else "l", done=over, info={"success": False})

    @staticmethod
    def rows(split: str) -> list[dict[str, Any]]:  # noqa: ARG004  evaluations play the same games
        """Return a row for each number."""
        return [{"secret": secret} for secret in range(1, 8)]


class GuessSoon(GuessNumber):
    """A wrong guess takes a quarter from the reward; the best mean return is 9/14, .643, that of binary search."""

    max_turns = 4

    def step(self, turn: Turn) -> Step:
        """Answer a guess."""
        step = super().step(turn)
        return attrs.evolve(step, reward=1.0 - turn.index / 4) if step.info["success"] else step


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each character of the game."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="!"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "!"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


MODEL = GPT2Config(
    vocab_size=len(WORDS), n_positions=16, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
)  # fmt: skip
TRAINERS: dict[str, dict[str, Any]] = {
    "grpo": {
        "name": "grpo", "rollouts": 224, "num_generations": 32, "kl_coef": 0.0, "scale": "none", "baseline": "mean",
        "entropy_coef": 0.03, "optimizer": {"lr": 2e-3},
    },
    "ppo": {
        "name": "ppo", "rollouts": 224, "batch_size": 224, "epochs": 2, "kl_coef": 0.0, "gamma": 1.0, "lam": 1.0,
        "entropy_coef": 0.15, "optimizer": {"lr": 1e-3},
    },
}  # fmt: skip
SOON: dict[str, dict[str, Any]] = {
    "grpo": {**TRAINERS["grpo"], "credit": "turn", "entropy_coef": 0.01},
    "ppo": {"name": "ppo", "entropy_coef": 0.02, "optimizer": {"lr": 1e-3}},
}
"""Options for `GuessSoon`."""
GAMES: dict[str, tuple[type[GuessNumber], dict[str, dict[str, Any]], dict[str, int]]] = {
    "number": (GuessNumber, TRAINERS, {"grpo": 300, "ppo": 300}),
    "soon": (GuessSoon, SOON, {"grpo": 200, "ppo": 80}),
}
"""The environment of each game, and the options and the number of rounds by trainer."""


def train(seed: int, trainer: str, game: str = "number", **run: Any) -> Any:
    """Train on one of `GAMES`, with its options for a trainer; evaluations play greedily."""
    environment, trainers, steps = GAMES[game]
    return rlcore.train(
        MODEL,
        tokenizer=make_tokenizer(),
        trainer=trainers[trainer],
        environment=environment,
        gen={"max_new_tokens": 1},
        eval={"every": 25, "gen": {"temperature": 0.0}},
        run={"steps": steps[trainer], "seed": seed, "name": f"guess_{game}_{trainer}_{seed}", "overwrite": True, **run},
    )


if __name__ == "__main__":
    given = [*sys.argv[1:], *["0", "grpo", "number"][len(sys.argv) - 1 :]]
    result = train(int(given[0]), given[1], given[2])
    print("mean return of greedy play:", result.metrics["eval/reward/mean"])
    print("mean return of sampled play:", result.metrics["reward/mean"])
