"""PPO discounts from turn to turn with options of their own, from the first step or from a resumed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from env_games import Echo
from episode_runs import lines, run

from rlcore.errors import RLCoreError
from rlcore.types import Trajectories
from rlcore_ppo.trainer import PPOTrainer

PPO: dict[str, Any] = {
    "name": "ppo", "rollouts": 4, "batch_size": 4, "epochs": 1, "gamma": 0.9, "lam": 0.8, "whiten_advantages": False,
    "optimizer": {"lr": 1e-2},
}  # fmt: skip


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Trajectories]:
    """Return a list to which every round that PPO learns from is added, with rewards, values and advantages."""
    found: list[Trajectories] = []
    update = PPOTrainer.update

    def noting(self: Any, batch: Trajectories) -> Any:
        found.append(batch)
        return update(self, batch)

    monkeypatch.setattr(PPOTrainer, "update", noting)
    return found


def train(folder: Path, *, steps: int = 2, accept: tuple[str, ...] = (), resume: str = "never", **options: Any) -> Any:
    how = {"root": str(folder), "name": "run", "steps": steps, "report": False, "resume": resume, "rollouts": "all"}
    return run(
        folder, trainer={**PPO, **options}, run={**how, "accept_changes": accept}, eval={"every": 0, "at_end": False}
    )


def weights(result: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in result.policy.module.parameters()])


def advantages_by_hand(batch: Trajectories, i: int, turn_gamma: float, turn_lam: float) -> dict[int, float]:
    """Return the advantage of each chosen token of a row, from the last one to the first."""
    chosen = [t for t in range(batch.tokens.shape[1]) if bool(batch.action_mask[i, t])]
    found, following, advantage = dict[int, float](), 0.0, 0.0
    for here, after in reversed(list(zip(chosen, [*chosen[1:], None], strict=True))):
        gamma, lam = (0.9, 0.8) if after == here + 1 else (turn_gamma, turn_lam)
        value = float(batch["values"][i, here])
        delta = float(batch["rewards"][i, here]) + gamma * following - value
        advantage = delta + gamma * lam * advantage
        found[here], following = advantage, value
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.9, 0.8)), ({"turn_gamma": 0.5}, (0.5, 0.8)), ({"turn_lam": 0.0}, (0.9, 0.0)),
        ({"turn_gamma": 1.0, "turn_lam": 1.0}, (1.0, 1.0)),
    ],
)  # fmt: skip
def test_advantages_are_discounted_between_two_turns_by_the_options_of_turns(
    options: Any, expected: tuple[float, float], rounds: list[Trajectories], tmp_path: Path
) -> None:
    train(tmp_path, steps=1, **options)
    (batch,) = rounds
    assert float(batch["rewards"].abs().sum()) > 0
    for i in range(len(batch.tokens)):
        for t, advantage in advantages_by_hand(batch, i, *expected).items():
            assert float(batch["advantages"][i, t]) == pytest.approx(advantage, abs=1e-5)


class CutOff(Echo):
    """It is cut off after the second turn, with the episode's last message."""

    def step(self, turn: Any) -> Any:
        return {"messages": "later", "reward": 1.0, "truncated": turn.index == 1}


def test_the_value_after_an_episode_that_is_cut_off_is_discounted_as_from_turn_to_turn(
    rounds: list[Trajectories], tmp_path: Path
) -> None:
    trainer = {**PPO, "turn_gamma": 0.5, "bootstrap_truncated": True}
    how = {"root": str(tmp_path), "name": "run", "steps": 1, "report": False}
    run(tmp_path, environment=CutOff, trainer=trainer, run=how, eval={"every": 0, "at_end": False})
    (batch,) = rounds
    assert not batch.ended.any()
    for i in range(len(batch.tokens)):
        last = int(batch.action_mask[i].nonzero()[-1])
        is_inside = last == int(batch.mask[i].nonzero()[-1]) and int(batch.tokens[i, last]) != 30  # no EOS
        after = (0.9 if is_inside else 0.5) * float(batch["bootstrap"][i])
        expected = float(batch["rewards"][i, last]) + after - float(batch["values"][i, last])
        assert float(batch["bootstrap"][i]) != 0
        assert float(batch["advantages"][i, last]) == pytest.approx(expected, abs=1e-5)


def test_a_discount_of_turns_that_equals_that_of_tokens_changes_nothing(tmp_path: Path) -> None:
    plain, same = train(tmp_path / "one"), train(tmp_path / "two", turn_gamma=0.9, turn_lam=0.8)
    assert torch.equal(weights(plain), weights(same))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"turn_gamma": 0.3}, {"turn_lam": 0.0}], ids=["turn_gamma", "turn_lam"])
def test_a_discount_of_turns_that_is_accepted_on_resume_takes_effect_from_there_on(
    change: dict[str, float], rounds: list[Trajectories], tmp_path: Path
) -> None:
    (name,) = change
    whole = train(tmp_path / "whole", steps=3)
    train(tmp_path / "parts", steps=2)
    with pytest.raises(RLCoreError, match=rf"trainer\.{name}"):
        train(tmp_path / "parts", steps=3, resume="auto", **change)
    rounds.clear()
    changed = train(tmp_path / "parts", steps=3, resume="auto", accept=(f"trainer.{name}",), **change)
    (batch,) = rounds  # the third
    assert lines(whole, "rollouts.jsonl") == lines(changed, "rollouts.jsonl")  # sampled before the change had an effect
    expected = {"turn_gamma": 0.9, "turn_lam": 0.8, **change}
    for i in range(len(batch.tokens)):
        for t, advantage in advantages_by_hand(batch, i, **expected).items():
            assert float(batch["advantages"][i, t]) == pytest.approx(advantage, abs=1e-5)
    assert not torch.equal(weights(whole), weights(changed))
