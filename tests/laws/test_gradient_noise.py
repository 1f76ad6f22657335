"""Laws that compare runs up to rounding hold if gradients have noise as large as the rounding errors of a processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
from small_trainers import TRAINERS, subject_of

from rlcore.plugins.registry import registries
from rlcore_testing.law import Law, Subject
from rlcore_testing.laws.shardings import two_processes_make_the_steps_of_one
from rlcore_testing.laws.trainer_invariance import (
    divided_weights_equal_whole_ones,
    micro_batches_change_nothing,
    padding_changes_nothing,
    two_processes_equal_one,
)
from rlcore_testing.laws.trainer_scores import the_temperature_divides_the_logits
from rlcore_testing.rig.compare_runs import weights
from rlcore_testing.rig.gradient_noise import SHARE, SWITCH, GradientNoise
from rlcore_testing.rig.runs import Tiny, noisy, run
from rlcore_testing.small import make_gpt2

SEEDS = range(1, 6)
SHARDINGS = tuple(f"rlcore-shard:{name}" for name in ("fsdp", "zero2", "zero3"))
BIAS, KEYS = "model.transformer.h.0.attn.c_attn.bias", slice(16, 32)
"""The bias of queries, keys and values of a GPT-2 of width 16: the true gradient of that of the keys is zero."""
LAWS = (
    padding_changes_nothing, micro_batches_change_nothing, two_processes_equal_one, divided_weights_equal_whole_ones,
    the_temperature_divides_the_logits,
)  # fmt: skip
ONE_OF_EACH = (
    (padding_changes_nothing, "rlcore-ilql", "ilql"), (micro_batches_change_nothing, "rlcore-reward", "reward"),
    (two_processes_equal_one, "rlcore-sft", "sft"), (divided_weights_equal_whole_ones, "rlcore-grpo", "grpo"),
    (the_temperature_divides_the_logits, "rlcore-ppo", "ppo"),
)  # fmt: skip
"""A trainer for each law; the others are checked at night."""
ROOT = Path(__file__).resolve().parents[2]
WRONG = "tests/testing/test_wrong_components.py"
WITH_ORACLES = ("distill", "dpo", "grpo", "reinforce", "reward", "rft")
OTHER_TESTS = (
    *(f"plugins/rlcore_{name}/tests/test_oracle.py" for name in WITH_ORACLES),
    "plugins/rlcore_dpo/tests/test_online_dpo.py", "tests/testing/test_oracle_laws.py", WRONG,
)  # fmt: skip
"""Tests of laws that compare trainers with oracles, and of what each law of the kit finds."""


@pytest.mark.slow
@pytest.mark.parametrize(("law", "dist", "trainer"), ONE_OF_EACH, ids=lambda part: getattr(part, "name", part))
def test_a_law_up_to_rounding_holds_with_noise_in_the_gradients_of_one_run(
    law: Law, dist: str, trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    law(subject_of(dist, trainer, TRAINERS[dist, trainer]))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("dist", "trainer"), TRAINERS, ids=str)
def test_all_laws_up_to_rounding_hold_with_the_noise_for_every_trainer(
    dist: str, trainer: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, str(seed))
    subject = subject_of(dist, trainer, TRAINERS[dist, trainer])
    held = [law for law in LAWS if law.when(subject)]
    for law in held:
        law(subject)
    assert {law.name for law in held} >= {"two_processes_equal_one", "micro_batches_change_nothing"}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", SHARDINGS)
def test_divided_steps_are_those_of_one_process_with_the_noise(
    strategy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, str(seed))
    component = registries().shardings.get(strategy)
    plugins = tuple(each for each in registries().discovery.plugins if each.dist == component.dist)
    two_processes_make_the_steps_of_one(Subject(component.dist, plugins, component))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tests", OTHER_TESTS)
def test_trainers_equal_their_oracles_and_planted_faults_are_found_with_the_noise(tests: str, seed: int) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    compared = " or ".join(law.name for law in (*LAWS, two_processes_make_the_steps_of_one))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not nightly", tests]
    done = subprocess.run(
        [*command, "-k", compared] if tests == WRONG else command, env={**kept, SWITCH: str(seed)}, cwd=ROOT,
        check=False, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_noise_is_a_share_of_the_largest_gradient_of_each_block() -> None:
    model = make_gpt2()
    named, noise = dict(model.named_parameters()), GradientNoise(1)
    noise.watch(model)
    for name, weight in named.items():
        weight.grad = torch.full_like(weight, 0.0 if name.endswith("attn.c_attn.bias") else 1.0)
    named["transformer.h.1.mlp.c_fc.weight"].grad[0, 0] = 100.0
    before = {name: weight.grad.clone() for name, weight in named.items()}
    noise.add(torch.optim.SGD(model.parameters(), lr=0.1))
    for name, weight in named.items():
        size = SHARE * (100.0 if name.startswith("transformer.h.1.") else 1.0)
        if name.endswith("attn.c_attn.bias"):  # keys have nothing but noise
            assert weight.grad.abs().allclose(torch.full_like(weight, size))
            assert 0 < int((weight.grad > 0).sum()) < weight.numel()
        assert 0 < float((weight.grad - before[name]).abs().max()) < 3 * size


@pytest.mark.slow
def test_adam_divides_the_noise_by_itself_unless_eps_is_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    subject, off = subject_of("rlcore-sft", "sft", {"batch_size": 4}), []
    for eps in (1e-8, 1e-3):
        plain = Tiny.of(
            subject, str(tmp_path), name=f"plain-{eps}", model="gpt2", steps=1,
            options={"batch_size": 4, "optimizer": {"lr": 1e-2, "eps": eps}},
        )  # fmt: skip
        with_noise = attrs.evolve(noisy(plain), name=f"noisy-{eps}")
        run(plain)
        run(with_noise)
        ours, theirs = weights(plain.dir), weights(with_noise.dir)
        off.append(float((ours[BIAS] - theirs[BIAS])[KEYS].abs().max()))
    assert off[0] > 1e-3
    assert off[1] < 1e-5
