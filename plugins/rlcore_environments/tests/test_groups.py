"""Groups of episodes: all members play the same game, failed ones are in no baseline, and turns are credited."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from env_games import TEMPLATE
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.protocols import Step, Turn
from rlcore_testing.small import make_gpt2, make_tokenizer

Row = dict[str, Any]
MODULUS = 1_000_003
"""Metrics are floats, which do not hold a whole seed."""


class Seeded:
    """Its second turn fails with some texts, and it ends after one to three turns; a turn's reward is a count."""

    fails_on = ""

    def reset(self, row: Any, *, seed: int) -> str:
        self.seed = seed
        return f"go {seed}"

    def step(self, turn: Turn) -> Step:
        if self.fails_on and turn.index == 1 and turn.text[-1:] <= self.fails_on:
            raise OSError("away")
        done = turn.index == 2 or "e" in turn.text
        return Step(f"you {turn.text[-1:]}", float(len(set(turn.text))), done=done, info={"seed": self.seed % MODULUS})


class Failing(Seeded):
    fails_on = "m"


def train(
    folder: Path, environment: Any, *, data: Any = None, observers: Any = (), chat: bool = True, **options: Any
) -> list[Row]:
    """Run two rounds of three groups of four episodes, and return the rows of rollouts.jsonl."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE if chat else None
    trainer = {"name": "grpo", "rollouts": 12, "num_generations": 4, "optimizer": {"lr": 1e-3}, **options}
    result = rlcore.train(
        make_gpt2(), trainer=trainer, environment=environment, prompts=[f"{letter}b" for letter in "abcdef"],
        gen={"max_new_tokens": 4}, loggers=[], tokenizer=tokenizer, data=data or {}, eval={"at_end": False},
        run={"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all"},
        observers=list(observers),
    )  # fmt: skip
    return [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]


def groups_of(rows: list[Row]) -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["step"], row["group"]].append(row)
    assert all(len(each) == 4 for each in found.values())
    return found


def is_failed(row: Row) -> bool:
    return bool(row["transcript"][-1]["role"] == "failure")


def rewards_of(row: Row) -> list[float]:
    return [each["reward"] for each in row["transcript"] if each["role"] == "assistant"]


def test_all_members_of_a_group_play_the_game_of_one_seed(tmp_path: Path) -> None:
    groups = groups_of(train(tmp_path, Seeded))
    seeds = []
    for members in groups.values():
        (opening,) = {row["messages"][-1]["content"] for row in members}
        (residue,) = {row["environment/seed"] for row in members}
        seed = int(opening.removeprefix("go "))
        assert seed % MODULUS == residue
        assert len({row["output"] for row in members}) > 1  # the policy is sampled with seeds of its own
        seeds.append(seed)
    assert len(seeds) == len(set(seeds)) == 6  # each row has a game of its own


def test_failed_episodes_are_left_out_of_the_baseline_of_their_group(tmp_path: Path) -> None:
    groups = groups_of(train(tmp_path, Failing, data={"episodes": {"max_failed": 1.0}}))
    is_mixed = False
    for members in groups.values():
        scores = [row["reward"] for row in members if not is_failed(row)]
        deviation = statistics.stdev(scores) if len(set(scores)) > 1 else 0.0
        for row in members:
            expected = 0.0 if is_failed(row) else (row["reward"] - statistics.fmean(scores)) / (deviation + 1e-4)
            assert row["advantage"] == pytest.approx(expected if deviation else 0.0, abs=1e-6)
            assert (row["reward"] is None) == is_failed(row)
        is_mixed |= bool(deviation) and len(scores) < 4
    assert is_mixed


class Advantages:
    """An observer that keeps the advantage of the last token of each turn."""

    def __init__(self) -> None:
        self.turns: list[list[float]] = []

    def on_rollout(self, run: Any, batch: Any) -> None:
        for row, chosen in zip(batch["advantages"].tolist(), batch.action_mask.tolist(), strict=True):
            runs = [value for t, value in enumerate(row) if chosen[t] and not (t + 1 < len(row) and chosen[t + 1])]
            self.turns.append(runs)
            assert all(value == 0.0 for t, value in enumerate(row) if not chosen[t])


def penalty(row: Row) -> float:
    """Return what an episode loses for its length: 1 at 12 tokens, nothing up to 6."""
    return max(row["length"] - 6, 0) / 6


def credited(rows: list[Row], lost: Callable[[Row], float]) -> list[list[float]]:
    """Return the advantages of the turns of each episode, from transcripts alone, with a discount of .5."""
    found: list[list[float]] = []
    for members in groups_of(rows).values():
        known: dict[int, list[float]] = defaultdict(list)
        returns: list[list[float]] = []
        for row in members:
            rest, back = 0.0, list[float]()
            rewards = [] if is_failed(row) else rewards_of(row)
            for k, reward in reversed(list(enumerate(rewards))):
                rest = reward + 0.5 * rest - (lost(row) if k == len(rewards) - 1 else 0.0)
                back.append(rest)
            returns.append(back[::-1])
            for k, value in enumerate(returns[-1]):
                known[k].append(value)
        for row, own in zip(members, returns, strict=True):
            advantages = [0.0] * int(row["episode/turns"])
            for k, value in enumerate(own):
                if len(set(known[k])) > 1:
                    advantages[k] = (value - statistics.fmean(known[k])) / (statistics.stdev(known[k]) + 1e-4)
            found.append(advantages)
    return found


@pytest.mark.parametrize(
    ("options", "lost"), [({}, lambda row: 0.0), ({"overlong_buffer": 0.5}, penalty)], ids=["rewards", "penalty"]
)
def test_each_turn_is_credited_with_what_followed_it(options: Any, lost: Any, tmp_path: Path) -> None:
    """The advantages of the run equal those computed from the transcripts; a penalty of length is at the last turn."""
    seen = Advantages()
    rows = train(
        tmp_path, Failing, observers=[seen], credit="turn", turn_discount=0.5,
        data={"episodes": {"max_failed": 1.0, "max_turns": 3}}, **options,
    )  # fmt: skip
    expected = credited(rows, lost)
    assert len(seen.turns) == len(expected) == 24
    assert {len(each) for each in expected} == {1, 2, 3}
    assert not options or any(map(lost, rows))
    for row, mine, other in zip(rows, seen.turns, expected, strict=True):
        assert mine == pytest.approx(other, abs=1e-5)
        assert row["advantage"] == pytest.approx(other[0], abs=1e-5)
    assert any(len({round(value, 3) for value in each}) > 1 for each in seen.turns)


@pytest.mark.parametrize(
    "options",
    [
        {"zero_spread": "refill", "refill_batches": 2, "scale": "batch"},
        {"zero_spread": "drop", "iterations": 2, "minibatches": 2, "baseline": "loo", "kl_coef": 0.1},
        {"overlong_buffer": 0.5, "mask_truncated": True, "norm": "constant", "surrogate": "cispo", "scale": "none"},
    ],
    ids=["refill", "passes", "penalty"],
)
def test_turns_go_with_the_options_of_whole_episodes(options: Any, tmp_path: Path) -> None:
    seen = Advantages()
    rows = train(
        tmp_path, Failing, observers=[seen], credit="turn", data={"episodes": {"max_failed": 1.0, "max_turns": 3}},
        **options,
    )  # fmt: skip
    advantages = [value for row in seen.turns for value in row]
    assert any(advantages)
    assert all(math.isfinite(value) for value in advantages)
    failed = [row for row in rows if is_failed(row)]
    assert failed
    assert all(row["advantage"] == 0.0 for row in failed)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"micro_batch_size": 3}, {"micro_batch_tokens": 64}], ids=str)
def test_the_size_of_micro_batches_does_not_change_what_turns_teach(options: Any, tmp_path: Path) -> None:
    """The weights after a step of plain gradient descent, whose length is that of the gradient, are the same."""
    plain = {"credit": "turn", "optimizer": {"name": "sgd", "lr": 0.5, "max_grad_norm": 0.0}}
    found = [weights(tmp_path / str(k), **plain, **each) for k, each in enumerate(({}, options))]
    start = [each.detach() for each in make_gpt2().parameters()]
    assert max(float((mine - first).abs().max()) for mine, first in zip(found[0], start, strict=True)) > 1e-3
    for mine, other in zip(*found, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def weights(folder: Path, **options: Any) -> list[torch.Tensor]:
    train(folder, Seeded, **options)
    model = AutoModelForCausalLM.from_pretrained(folder / "run" / "model")
    return [each.detach() for each in model.parameters()]


def test_turns_without_another_to_compare_are_counted(tmp_path: Path) -> None:
    rows = train(tmp_path, Failing, credit="turn", data={"episodes": {"max_failed": 1.0}})
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        if row["step"] == 1 and not is_failed(row):
            for k in range(len(rewards_of(row))):
                counts[row["group"], k] += 1
    alone = sum(count == 1 for count in counts.values())
    assert first["group/lone_turn_fraction"] == pytest.approx(alone / sum(counts.values()))


def test_turns_between_which_nothing_is_said_do_not_become_one_turn(tmp_path: Path) -> None:
    """Without a template, an empty message has no token; such episodes fail with the reason, and others are learned."""

    class Quiet(Seeded):
        def step(self, turn: Turn) -> Step:
            said = {"role": "user", "content": "" if turn.text[-1:] <= "m" else "on"}
            return Step([said], float(turn.index + 1), done=turn.index == 1)

    rows = train(tmp_path, Quiet, chat=False, credit="turn", data={"episodes": {"max_failed": 1.0}})
    failed = [row for row in rows if is_failed(row)]
    assert 0 < len(failed) < len(rows)
    for row in failed:
        assert "episode" in row["transcript"][-1]["content"]
        assert "turn 1: no token of the environment's answer '' would stand between" in row["transcript"][-1]["content"]
    assert all(rewards_of(row) == [1.0, 2.0] for row in rows if row not in failed)
    with_template = train(tmp_path / "chat", Quiet, credit="turn")  # which separates them
    assert not any(map(is_failed, with_template))
