"""Tests of the end of a run: it closes the sampler and the rewards that it built, once, however it ends."""

from __future__ import annotations

import gc
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.components import Component
from rlcore.errors import ConfigError, RewardError
from rlcore.plugins import registry
from rlcore.rewards import chosen_rewards
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward
from rlcore_transformers.sampling import sampler
from rlcore_transformers.sampling.token_options import SamplerConfig


class Held:
    """A sampler or reward that counts its closings."""

    def __init__(self, call: Any, *, fails: bool = False) -> None:
        self.call, self.fails, self.num_closed = call, fails, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.call(*arguments, **named)

    def open(self, run: Any) -> None:
        self.run = run

    def close(self) -> None:
        self.num_closed += 1
        if self.fails:
            raise OSError("the engine is gone")


class HeldReward(Held):
    """The same with the signature of a reward."""

    def __call__(self, outputs: list[str]) -> Any:
        return self.call(outputs)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[Held, HeldReward]:
    """Build the runs of a test with a sampler and a registered reward `held` that have a `close`."""
    ours = Held(sampler.build_sampler(SamplerConfig())), HeldReward(toy_reward)
    monkeypatch.setattr(sampler, "build_sampler", lambda _: ours[0])
    rewards = registry.Registry("rewards", [Component("rewards", "held", "acme", "1", "", ours[1], None)], [])
    monkeypatch.setattr(chosen_rewards, "registries", lambda: types.SimpleNamespace(rewards=rewards))
    return ours


def train(folder: Path, **changes: Any) -> rlcore.Result:
    given: dict[str, Any] = {
        "trainer": {"name": "ppo", "rollouts": 4, "batch_size": 4, "epochs": 1}, "reward_fn": "held", "loggers": [],
        "prompts": list(PROMPTS), "run": {"root": str(folder), "steps": 1}, "gen": {"max_new_tokens": 3},
        "eval": {"at_end": False},
    }  # fmt: skip
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), **{**given, **changes})


def test_the_sampler_and_registered_rewards_are_closed_at_the_end(tmp_path: Path, held: tuple[Held, Held]) -> None:
    result = train(tmp_path)
    assert [each.num_closed for each in held] == [1, 1]
    assert len(result.generate("ab", max_new_tokens=2)) == 1  # which calls the sampler again


def test_a_registered_reward_receives_the_run_before_its_first_call(tmp_path: Path, held: tuple[Held, Held]) -> None:
    seen = []

    def look(outputs: list[str]) -> list[float]:
        seen.append((held[1].run.dir.is_dir(), held[1].run.step, held[1].run.is_stopping))
        held[1].run.request_stop("enough")
        seen.append(held[1].run.is_stopping)
        return toy_reward(outputs)

    held[1].call = look
    train(tmp_path)
    assert seen == [(True, 0, False), True]


def test_a_sampler_receives_the_run_before_its_model_is_built(tmp_path: Path, held: tuple[Held, Held]) -> None:
    class Refusing(Held):
        def open(self, run: Any) -> None:
            assert run.models.built is None
            raise ConfigError(f"gen.max_new_tokens = {run.config.gen.max_new_tokens}: this engine has no room")

    held[0].__class__ = Refusing
    with pytest.raises(ConfigError, match=r"gen.max_new_tokens = 3: this engine"):
        train(tmp_path)


def test_a_component_may_keep_the_folder_of_a_run_whose_first_step_fails(
    tmp_path: Path, held: tuple[Held, Held]
) -> None:
    def keep_and_fail(outputs: list[str]) -> list[str]:
        held[1].run.keep_folder()
        return ["good"] * len(outputs)

    held[1].call = lambda outputs: ["good"] * len(outputs)
    with pytest.raises(RewardError):
        train(tmp_path / "lost")
    held[1].call = keep_and_fail
    with pytest.raises(RewardError):
        train(tmp_path / "kept")
    assert [len(list(tmp_path.glob(f"{name}/*/config.yaml"))) for name in ("lost", "kept")] == [0, 1]


def test_the_sampler_and_registered_rewards_are_closed_when_the_run_fails(
    tmp_path: Path, held: tuple[Held, Held]
) -> None:
    held[1].call = lambda outputs: ["good"] * len(outputs)
    with pytest.raises(RewardError):
        train(tmp_path)
    assert [each.num_closed for each in held] == [1, 1]


def test_the_sampler_is_closed_when_no_trainer_can_be_built(tmp_path: Path, held: tuple[Held, Held]) -> None:
    with pytest.raises(ConfigError):
        train(tmp_path, checkpoint={"keep_best": 1})  # which needs evaluations
    assert held[0].num_closed == 1


def test_an_error_in_close_is_logged_and_ends_no_run(
    tmp_path: Path, held: tuple[Held, Held], capsys: pytest.CaptureFixture[str]
) -> None:
    held[0].fails = True
    result = train(tmp_path)
    assert held[1].num_closed == 1
    assert [(each.plugin, each.what) for each in result.run.dropped] == [("rlcore-transformers:default", "close")]
    assert "OSError: the engine is gone" in capsys.readouterr().err


def test_a_sampler_whose_open_fails_is_closed(
    tmp_path: Path, held: tuple[Held, HeldReward], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Any) -> None:
        raise ConfigError("a server is missing")

    monkeypatch.setattr(held[0], "open", fail, raising=False)
    with pytest.raises(ConfigError, match="a server is missing"):
        train(tmp_path)
    assert [each.num_closed for each in held] == [1, 0]


def test_a_function_of_the_users_own_is_not_closed(tmp_path: Path, held: tuple[Held, Held]) -> None:
    train(tmp_path, reward_fn=held[1])
    assert held[1].num_closed == 0


SAMPLES = [["ab", "cab"]] * 4
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "a reward that keeps the run": {"reward_fn": "held"},
    "sft": {"trainer": "sft", "samples": SAMPLES, "eval_samples": SAMPLES, "prompts": None, "reward_fn": None},
    "ilql": {"trainer": "ilql", "samples": SAMPLES, "rewards": [0.0, 1.0] * 2, "eval_samples": SAMPLES},
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_a_dropped_result_frees_its_model_at_once(
    tmp_path: Path, held: tuple[Held, HeldReward], changes: dict[str, Any]
) -> None:
    """No cycle of references holds the model, whose memory would otherwise be kept until a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        result = train(tmp_path, **{"reward_fn": toy_reward, "eval": {"every": 1}, **changes})
        model = weakref.ref(result.policy.module)
        assert model() is not None
        for each in held:  # `open` passed them the run; they outlive it only in this test
            each.run = None
        del result
        assert model() is None
    finally:
        gc.enable()
