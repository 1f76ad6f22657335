"""Samplers of asynchronous runs: with and without submit and collect, slow, failing, and refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from asynchronous_runs import metrics, rollouts, train, weights

from rlcore.errors import ConfigError, DataError
from rlcore.optim.updater import Updater
from rlcore.protocols import Step
from rlcore_engines.asynchronous.sampler import AheadSampler
from rlcore_testing.rig.probes import resolve
from rlcore_testing.small import make_llama
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.sampling.sampler import DefaultSampler

LIMIT_S = 30.0


class Plain:
    """Samples with the default sampler, in rounds only that it is let to."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before, self.threads, self.running, self.most = before, list[str](), 0, 0

    def __call__(
        self, policy: Any, prompts: Any, sampling: Any, *, generator: Any = None, row_seeds: Any = None
    ) -> Any:
        self.threads.append(threading.current_thread().name)
        self.running += 1
        self.most = max(self.most, self.running)
        self.before()
        rows = DefaultSampler()(policy, prompts, sampling, generator=generator, row_seeds=row_seeds)
        self.running -= 1
        return rows


class Engine(Plain):
    """Has one copy of the weights, which `submit` replaces, and samples when it is asked for the rows."""

    one_version = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, int]] = []
        self.policy: Any = None
        self.is_open = self.is_closed = False

    def open(self, run: Any) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_closed = True

    def submit(self, policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any:
        self.events.append(("submit", policy.version))
        self.policy = policy.sampling_copy()
        return prompts, sampling, options, policy.version

    def collect(self, handle: Any) -> Any:
        prompts, sampling, options, version = handle
        assert self.policy.version == version
        self.events.append(("collect", version))
        return self(self.policy, prompts, sampling, **options)


def choose(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("rlcore_transformers.sampling.sampler.build_sampler", lambda _: sampler)
    return sampler


def test_a_round_is_sampled_while_the_policy_learns_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round but the first begins before the optimizer has stepped; in turns they would wait for each other."""
    stepped, calls = threading.Event(), list[int]()

    def wait() -> None:
        calls.append(1)
        if len(calls) == 2:
            assert stepped.wait(LIMIT_S)

    sampler, step = choose(Plain(wait), monkeypatch), Updater.step
    monkeypatch.setattr(Updater, "step", lambda self, meter: (step(self, meter), stepped.set())[0])
    train(tmp_path, "ppo", 1, eval={"at_end": False})
    assert len(sampler.threads) == 5  # with the round after the last step, which the checkpoint contains
    assert {*sampler.threads} == {"rlcore-engines"}
    assert "rlcore-engines" not in {thread.name for thread in threading.enumerate()}


def test_a_sampler_is_never_called_twice_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = choose(Plain(), monkeypatch)
    train(tmp_path, "grpo", 2, eval={"every": 1})
    assert "MainThread" in sampler.threads  # evaluations
    assert sampler.most == 1


def test_waiting_for_rows_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(Plain(lambda: time.sleep(0.3)), monkeypatch)
    result = train(tmp_path, "ppo", 1, run={"steps": 2}, eval={"at_end": False})
    assert 0.05 < result.metrics["time/idle_s"] < result.metrics["time/step_s"]


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "steps"), [("ppo", 1), ("grpo", 1), ("rft", 2)])
def test_a_round_takes_as_long_as_the_longer_side(
    trainer: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling waits .4 s and learning .4 s a round: together .8 s, and at once about .4 s."""
    choose(Plain(lambda: time.sleep(0.4)), monkeypatch)
    module = {"ppo": "rlcore_ppo.trainer.PPOTrainer.update", "grpo": "rlcore_grpo.trainer.GRPOTrainer.update"}
    name = module.get(trainer, "rlcore_rft.trainer.RFTTrainer.select")
    learn = resolve(".".join(name.split(".")[:2]) + ":" + ".".join(name.split(".")[2:]))
    monkeypatch.setattr(name, lambda *given: (time.sleep(0.4 / steps), learn(*given))[1])
    taken = {}
    for ahead in (0, steps):
        options = {"eval": {"at_end": False}, "checkpoint": {"at_end": False}, "run": {"steps": 6 * steps}}
        train(tmp_path / str(ahead), trainer, ahead, **options)
        lines = (tmp_path / str(ahead) / "run" / "metrics.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["time/step_s"] for line in lines]
        taken[ahead] = median(sum(seconds[i : i + steps]) for i in range(steps, 6 * steps, steps))
    assert taken[0] / taken[steps] >= 1.6, taken


@pytest.mark.slow
def test_weights_of_a_sampler_with_one_version_change_between_requests_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was submitted is collected before the next weights arrive, and at the end of a step at the latest."""
    engine = choose(Engine(), monkeypatch)
    result = train(tmp_path, "ppo", 1, eval={"every": 2})
    versions = [version for name, version in engine.events if name == "submit"]
    assert engine.events[:2] == [("submit", 0), ("submit", 0)]
    assert versions == sorted(versions)
    open_now = 0
    for name, version in engine.events:
        open_now += 1 if name == "submit" else -1
        assert open_now <= (2 if version == 0 else 1)
    assert engine.is_open
    assert engine.is_closed
    own = train(tmp_path / "own", "ppo", 1, eval={"every": 2})
    assert rollouts(tmp_path) == rollouts(tmp_path / "own")
    assert all(map(torch.equal, weights(result), weights(own)))


def test_an_error_of_a_sampler_in_its_thread_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def fail() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise DataError("the engine is out of paper")

    choose(Plain(fail), monkeypatch)
    with pytest.raises(DataError, match="out of paper"):
        train(tmp_path, "ppo", 1, eval={"at_end": False})
    assert len([line for line in metrics(tmp_path) if "loss/policy" in line]) == 2


@pytest.mark.slow
def test_a_round_that_the_trainer_did_not_foresee_is_sampled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore_ppo.trainer import PPOTrainer

    upcoming = PPOTrainer.upcoming
    monkeypatch.setattr(PPOTrainer, "upcoming", lambda self, steps: upcoming(self, steps + 1)[1:])  # the one after
    train(tmp_path, "ppo", 1)
    synchronous = train(tmp_path / "other", "ppo", 0)
    found = [(row["step"], row["output"]) for row in rollouts(tmp_path)]
    assert found == [(row["step"], row["output"]) for row in rollouts(tmp_path / "other")]
    assert synchronous.metrics["reward/mean"]


def test_later_changes_do_not_reach_a_copy_of_the_policy_and_frozen_weights_are_shared() -> None:
    from rlcore_testing.small import make_tokenizer
    from rlcore_transformers.models.causal import build_causal_lm
    from rlcore_transformers.models.model_options import CausalLMConfig

    policy = build_causal_lm(
        make_llama(), CausalLMConfig(), tokenizer=make_tokenizer(), value_head=True, reference=True
    )
    frozen = next(iter(policy.module.parameters()))
    frozen.requires_grad_(False)
    policy.version = 7
    before = policy.decoder([[1, 2, 3]], max_new_tokens=1).start().logits
    copied = policy.sampling_copy()
    with torch.no_grad():
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    assert torch.equal(copied.decoder([[1, 2, 3]], max_new_tokens=1).start().logits, before)
    assert not torch.equal(policy.decoder([[1, 2, 3]], max_new_tokens=1).start().logits, before)
    assert next(iter(copied.module.parameters())) is frozen
    assert copied.version == 7
    assert copied.reference is None
    assert copied.tokenizer is policy.tokenizer
    assert policy.module.training
    assert policy.reference is not None


class Greets:
    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Any) -> Step:
        return Step(messages="", reward=0.0, done=True)


def without_seeds(policy: Any, prompts: Any, sampling: Any, *, generator: Any = None) -> Any:
    return DefaultSampler()(policy, prompts, sampling, generator=generator)


def test_what_cannot_be_asynchronous_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="trainer 'reinforce' has no method upcoming"):
        reinforce(tmp_path)
    with pytest.raises(ConfigError, match=r"episodes of data\.environment"):
        train(tmp_path, "ppo", 1, environment=Greets, reward_fn=None)
    with pytest.raises(ConfigError, match="zero_spread = 'refill'"):
        train(tmp_path, "grpo", 1, change={"zero_spread": "refill"})
    with monkeypatch.context() as patch:
        choose(without_seeds, patch)
        with pytest.raises(ConfigError, match="sampler 'default' has no parameter row_seeds"):
            train(tmp_path, "ppo", 1)
    with monkeypatch.context() as patch:
        patch.delattr(ModelPolicy, "sampling_copy")
        with pytest.raises(ConfigError, match="no methods submit and collect, and ModelPolicy has no method"):
            train(tmp_path, "ppo", 1)
    assert not (tmp_path / "run").exists()


def reinforce(folder: Path) -> None:
    from rlcore import train as run
    from rlcore_testing.small import PROMPTS, make_tokenizer, toy_reward

    run(
        make_llama(), trainer="reinforce", tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward,
        run={"root": str(folder), "name": "run", "asynchronous": 1, "steps": 1}, loggers=[],
    )  # fmt: skip


@pytest.mark.slow
def test_samples_that_are_not_corrected_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "off", "ppo", 1, change={"is_correction": "off"}, run={"steps": 1})
    assert "samples of earlier weights are not corrected" in capsys.readouterr().err
    train(tmp_path / "on", "ppo", 1, run={"steps": 3})
    train(tmp_path / "rft", "rft", 1, run={"steps": 3})
    said = capsys.readouterr().err
    assert "not corrected" not in said
    assert "keep old weights" not in said  # they are older on purpose


def test_the_option_needs_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "asynchronous")
    with pytest.raises(ConfigError, match=r"run\.asynchronous = 1: comes with rlcore-engines, which is installed"):
        train(tmp_path, "ppo", 1)


class Continuing(Plain):
    """Samples the first token of a round when it is submitted, the second one with the weights that are there when the
    rows are asked for, and the others with those of one update before.
    """

    def submit(self, policy: Any, prompts: Any, sampling: Any, *, row_seeds: Any, generator: Any = None) -> Any:
        rows = DefaultSampler()(policy, prompts, sampling, row_seeds=row_seeds)
        return rows, policy, policy.version

    def collect(self, handle: Any) -> Any:
        rows, policy, version = handle
        places = rows.action_mask.cumsum(-1)
        used = [version, policy.version, max(version, policy.version - 1)]
        versions = torch.tensor(used)[places.clamp(1, 3) - 1] * rows.action_mask
        return rows.with_columns(token_versions=versions)


class Watch:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_rollout(self, run: Any, batch: Any) -> None:
        first = batch.action_mask & (batch.action_mask.cumsum(-1) == 1)
        later = batch.action_mask & ~first
        versions = batch["token_versions"]
        assert torch.equal(versions[first], batch["versions"])
        second = later & (batch.action_mask.cumsum(-1) == 2)
        parts = (first, second, later & ~second)
        self.seen.append((run.step, *(set(versions[part].tolist()) for part in parts)))


def test_versions_of_tokens_are_numbers_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has two updates of the policy, whose own numbers therefore go up by two."""
    watch = Watch()
    change, run = {"iterations": 2, "is_correction": "token_truncate"}, {"steps": 3}
    choose(Continuing(), monkeypatch)
    train(tmp_path, "grpo", 1, run=run, change=change, observers=[watch])
    assert watch.seen == [(0, {0}, {0}, {0}), (1, {0}, {1}, {0}), (2, {1}, {2}, {1})]


class Numbered(Continuing):
    """Names the policy's version for each token of a plain call, too."""

    def __call__(self, policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any:
        rows = super().__call__(policy, prompts, sampling, **options)
        return rows.with_columns(token_versions=policy.version * rows.action_mask)


def test_versions_of_rounds_that_are_sampled_at_once_are_numbers_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations before the first step, after the first, and after the second; each step has two updates."""
    seen = list[set[int]]()
    call = AheadSampler.__call__

    def watched(self: AheadSampler, policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any:
        rows = call(self, policy, prompts, sampling, **options)
        if "versions" not in rows:
            seen.append(set(rows["token_versions"][rows.action_mask].tolist()))
        return rows

    monkeypatch.setattr(AheadSampler, "__call__", watched)
    choose(Numbered(), monkeypatch)
    change = {"iterations": 2, "is_correction": "token_truncate"}
    result = train(
        tmp_path, "grpo", 1, run={"steps": 2}, change=change, eval={"every": 1, "at_start": True, "at_end": True}
    )
    assert result.policy.version == 4
    assert seen == [{0}, {1}, {2}]
