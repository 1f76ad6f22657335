"""Regression tests for defects known from other libraries: tokens sampled, rewarded, counted and scored."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from known_defects import KINDS, LEARNERS, PROMPTS, Kind, Recorder, as_it_is, build, learn, make_ambiguous_tokenizer

from rlcore.types import Trajectories
from rlcore_testing.rig.compare_runs import MEASURED
from rlcore_testing.small import make_tokenizer

Make = Callable[..., Any]
EOS, PAD = 30, 31


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


# trlX decoded the samples and tokenised the text again, so the trained tokens differed from the sampled ones.
@pytest.mark.parametrize("learner", ["ppo", "rft"])
def test_sampled_tokens_are_the_tokens_trained_on(make_trainer: Make, kind: Kind, learner: str) -> None:
    tokenizer, prompts = make_ambiguous_tokenizer(), ["a", "bab", "abba"]
    changes = {"tokenizer": tokenizer, "prompts": prompts, "gen": {"eos_token_ids": [EOS]}}
    trainer = build(make_trainer, learner, kind.section(kind.make()), **changes)
    recorder = Recorder(trainer)
    next(trainer.steps())
    assert recorder.sampled
    assert any(list(output) != tokenizer(tokenizer.decode(output))["input_ids"] for _, output in recorder.sampled)
    if learner == "ppo":
        assert Counter(recorder.learned) == Counter(recorder.sampled * 2)  # two epochs
    else:
        assert recorder.learned
        assert set(recorder.learned) <= set(recorder.sampled)


@pytest.mark.slow
# trlX put the reward a slot or two past EOS for short responses, so that ending could not be learned.
def test_a_policy_learns_to_sample_eos_if_short_responses_are_rewarded(tmp_path: Path, kind: Kind) -> None:
    def reward_fn(outputs: list[str]) -> list[float]:
        return [float(not output) for output in outputs]

    def share_that_end_at_once(steps: int) -> float:
        done = learn(
            "ppo", kind.section(kind.make()), tmp_path, reward_fn=reward_fn, prompts=["a", "bc"],
            gen={"eos_token_ids": [EOS, *range(12)], "max_new_tokens": 2},
            trainer={"rollouts": 64, "batch_size": 32, "epochs": 4, "optimizer": {"lr": 1e-2}},
            run={"steps": steps, "overwrite": True},
        )  # fmt: skip
        return mean(not output for output in done.generate(["a", "bc"] * 100))

    assert share_that_end_at_once(0) < 0.1
    assert share_that_end_at_once(12) > 0.5


# trlX, and TRL in #3750, left EOS out of the loss where the padding token is EOS.
@pytest.mark.parametrize("learner", list(LEARNERS))
def test_padding_with_eos_does_not_change_training(tmp_path: Path, kind: Kind, learner: str) -> None:
    def reward_fn(output_tokens: list[list[int]]) -> list[float]:
        return [sum(tokens) / 10 - len(tokens) for tokens in output_tokens]  # texts distinguish the two paddings

    said = []
    for pad_is_eos in (False, True):
        done = learn(
            learner, kind.section(kind.make()), tmp_path, tokenizer=make_tokenizer(pad_is_eos=pad_is_eos),
            reward_fn=reward_fn, run={"name": str(pad_is_eos)}, gen={"eos_token_ids": [EOS, 3, 7, 11]},
            trainer={"optimizer": {"lr": 1e-2}}, eval={"at_end": False},
        )  # fmt: skip
        rows = map(json.loads, (done.run_dir / "metrics.jsonl").read_text().splitlines())
        said.append([{name: value for name, value in row.items() if not name.startswith(MEASURED)} for row in rows])
    assert len(said[0]) == 3
    assert said[0] == said[1]


@pytest.mark.slow
# The same for demonstrations: EOS is a trained token of every demonstration, whatever the padding token is.
@pytest.mark.parametrize("learner", ["sft", "ilql"])
@pytest.mark.parametrize("pad_is_eos", [False, True], ids=["pad", "pad is eos"])
def test_a_policy_learns_eos_from_demonstrations(tmp_path: Path, kind: Kind, learner: str, *, pad_is_eos: bool) -> None:
    samples = [["a", "b"], ["c", "deef"], ["ff", "g"]]
    done = learn(
        learner, kind.section(kind.make()), tmp_path, tokenizer=make_tokenizer(pad_is_eos=pad_is_eos), samples=samples,
        rewards=[1, 2, 3], trainer={"optimizer": {"lr": 1e-2}}, run={"steps": 60},
        gen={"eos_token_ids": None, "temperature": 0, "beta": 0},
    )  # fmt: skip
    assert done.generate([prompt for prompt, _ in samples]) == [output for _, output in samples]


def round_of(trainer: Any, recorder: Recorder) -> tuple[dict[str, float], list[Any], Trajectories]:
    """Run a trainer's second round, in which policy and reference differ; return outputs, samples and store."""
    steps, stored = trainer.steps(), []
    next(steps)
    recorder.before, recorder.sampled, append = as_it_is(trainer.policy()), [], trainer.store.append
    trainer.store.append = lambda batch: (stored.append(batch), append(batch))
    return next(steps), recorder.sampled, stored[0]


# trlX and TRL averaged KL, entropy and whitened advantages over padding, and over prompts.
def test_kl_and_entropy_are_of_chosen_tokens_only(make_trainer: Make, kind: Kind) -> None:
    model = kind.make()
    reference = copy.deepcopy(model)
    trainer = build(
        make_trainer, "ppo", kind.section(model),
        trainer={"epochs": 1, "batch_size": 12, "entropy_coef": 0.01, "kl_coef": 0.1, "optimizer": {"lr": 3e-2}},
    )  # fmt: skip
    recorder = Recorder(trainer)
    metrics, sampled, _ = round_of(trainer, recorder)
    assert len({len(output) for _, output in sampled}) > 1
    kls, entropies = [], []
    for prompt, output in sampled:
        now, then = kind.says(recorder.before, prompt, output), kind.says(reference, prompt, output)
        places = range(len(output)), list(output)
        kls.append(float((now[places] - then[places]).sum()))
        entropies += [float(-(row.exp() * row).sum()) for row in now]
    assert abs(mean(kls)) > 0.01
    assert metrics["kl/mean"] == pytest.approx(mean(kls), abs=1e-4)
    assert metrics["loss/entropy"] == pytest.approx(mean(entropies), abs=1e-4)


def test_advantages_are_whitened_over_chosen_tokens_only(make_trainer: Make, kind: Kind) -> None:
    trainer = build(make_trainer, "ppo", kind.section(kind.make()))
    _, sampled, batch = round_of(trainer, Recorder(trainer))
    raw, whitened = (
        [row[chosen].tolist() for row, chosen in zip(column, batch.action_mask, strict=True)]
        for column in (batch["returns"] - batch["values"], batch["advantages"])
    )
    assert [len(row) for row in raw] == [len(output) for _, output in sampled]
    flat = np.array([*chain(*raw)])
    assert np.allclose([*chain(*whitened)], (flat - flat.mean()) / flat.std(), atol=1e-4)


# TRL's log-probs depended on the amount and side of padding where positions counted padding.
@pytest.mark.parametrize("side", ["right", "left", "both"])
@pytest.mark.parametrize("pad_id", [EOS, PAD, 0])
def test_logprobs_are_those_of_the_unpadded_sequence(make_trainer: Make, kind: Kind, side: str, pad_id: int) -> None:
    trainer = build(make_trainer, "sft", kind.section(kind.make()))
    rows = [((1, 2), (3, EOS)), ((4,), (5, 6, 7, 8, 9)), ((10, 11, 12, 13, 14, 15, 0), (16,)), ((EOS, 1), (EOS, EOS))]
    height, width = len(rows), 12
    tokens, mask = torch.full((height, width), pad_id), torch.zeros(height, width, dtype=torch.bool)
    chosen = torch.zeros_like(mask)
    for i, (prompt, output) in enumerate(rows):
        room = width - len(prompt) - len(output)
        start = {"right": 0, "left": room, "both": (i + 1) * room // 5}[side]
        end = start + len(prompt) + len(output)
        tokens[i, start:end] = torch.tensor([*prompt, *output])
        mask[i, start:end], chosen[i, start + len(prompt) : end] = True, True
    batch = Trajectories(tokens, mask, chosen, torch.ones(height, dtype=torch.bool))
    said, plain = trainer.policy().score(batch).logprobs, as_it_is(trainer.policy())
    for i, (prompt, output) in enumerate(rows):
        expected = kind.says(plain, prompt, output)[range(len(output)), list(output)]
        assert torch.allclose(said[i][chosen[i]], expected, atol=1e-5)


def test_a_batched_continuation_equals_that_of_the_prompt_alone(tmp_path: Path, kind: Kind) -> None:
    done = learn("sft", kind.section(kind.make()), tmp_path, run={"steps": 0}, gen={"eos_token_ids": [EOS]})
    tokenizer, plain = make_tokenizer(), as_it_is(done.policy)
    expected = []
    for prompt in PROMPTS:
        read, output = tokenizer(prompt)["input_ids"], []
        while len(output) < 6 and EOS not in output:
            output.append(int(kind.says(plain, read, [*output, 0])[-1].argmax()))
        expected.append(tokenizer.decode(output, skip_special_tokens=True))
    assert len(set(expected)) > 2
    assert done.generate(PROMPTS, temperature=0) == expected
