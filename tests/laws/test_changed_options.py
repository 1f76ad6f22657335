"""Options that matter only beside others have their effect in a resumed run too, or are declared to have none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from depths import by_day
from small_teacher import TEACHER

from rlcore_testing.cases import cases
from rlcore_testing.laws.trainer_options import Changes, an_accepted_change_has_its_effect
from rlcore_testing.rig.compare_runs import check_close, checkpoint
from rlcore_testing.rig.runs import noisy, run

FAST = {"optimizer": {"lr": 1e-2}}
GRPO = {"rollouts": 8, "num_generations": 2, "optimizer": {"lr": 1e-1, "max_grad_norm": 0.0}}
PAIRS = {"batch_size": 4, **FAST}
IMAGES = {"rollouts": 5, "batch_size": 3, "steps": 2, "guidance": 2.0, "clip_range": 0.05, "optimizer": {"lr": 3e-3}}
DISTILL = {"teacher": TEACHER, "on_policy": 0.5, **PAIRS}
ALONE: dict[tuple[str, str], dict[str, Any]] = {
    ("rlcore-sft", "sft"): PAIRS, ("rlcore-ppo", "ppo"): {"rollouts": 8, "batch_size": 4, "epochs": 2, **FAST},
    ("rlcore-ilql", "ilql"): PAIRS, ("rlcore-grpo", "grpo"): {"rollouts": 8, "num_generations": 2, **FAST},
    ("rlcore-dpo", "dpo"): PAIRS, ("rlcore-dpo", "online_dpo"): PAIRS, ("rlcore-distill", "distill"): DISTILL,
    ("rlcore-distill", "distill_prompts"): DISTILL, ("rlcore-reinforce", "reinforce"): {"rollouts": 8},
    ("rlcore-rft", "rft"): {"generations": 8, "improve_steps": 3, "history": 2, "batch_size": 5},
    ("rlcore-reward", "reward"): PAIRS, ("rlcore-reward", "process_reward"): PAIRS, ("rlcore-ddpo", "ddpo"): IMAGES,
}  # fmt: skip
"""Dist and trainer → options of runs in which the law of the kit changes each option by itself."""
BESIDE: list[tuple[str, str, dict[str, Any], str]] = [
    ("rlcore-ppo", "ppo", {"rollouts": 8, "batch_size": 4, "kl_coef": 0.1, "kl_target": 0.5, "kl_horizon": 20, **FAST},
     "kl_coef kl_horizon"),
    ("rlcore-ppo", "ppo", {"rollouts": 8, "batch_size": 4, "score_scaling": "first", **FAST}, "score_scaling"),
    ("rlcore-ilql", "ilql", {**PAIRS, "sync_every": 2, "target_rate": 0.5}, "sync_every target_rate"),
    ("rlcore-grpo", "grpo", {**GRPO, "iterations": 3}, "clip_low clip_high dual_clip"),
    ("rlcore-grpo", "grpo", {**GRPO, "iterations": 3, "surrogate": "cispo", "cispo_cap": 1.0}, "cispo_cap"),
    ("rlcore-grpo", "grpo", {**GRPO, "iterations": 3, "surrogate": "vespo"},
     "vespo_k vespo_lambda vespo_k_negative vespo_lambda_negative"),
    ("rlcore-grpo", "grpo", {**GRPO, "iterations": 3, "surrogate": "sapo"}, "sapo_tau sapo_tau_negative"),
    ("rlcore-grpo", "grpo", {**GRPO, "overlong_buffer": 0.9, **FAST}, "overlong_penalty"),
    ("rlcore-grpo", "grpo", {**GRPO, "kl_coef": 0.5}, "kl_coef kl_in kl_estimator sync_ref_every"),
    ("rlcore-grpo", "grpo", {**GRPO, "kl_coef": 0.5, "iterations": 2}, "kl_ratio"),
    ("rlcore-grpo", "grpo", {**GRPO, "kl_coef": 0.5, "sync_ref_every": 1}, "sync_ref_every sync_ref_alpha"),
    ("rlcore-grpo", "grpo", {**GRPO, "is_correction": "token_truncate", "is_high": 0.9}, "is_high"),
    ("rlcore-grpo", "grpo", {**GRPO, "is_correction": "token_truncate"}, "is_low"),
    ("rlcore-dpo", "dpo", {**PAIRS, "loss": "simpo"}, "gamma"),
    ("rlcore-dpo", "dpo", {**PAIRS, "loss": "ipo"}, "average"),
    ("rlcore-dpo", "dpo", {**PAIRS, "loss": "discopop"}, "tau"),
    ("rlcore-dpo", "dpo", {**PAIRS, "sft_coef": 1.0}, "nll sft_coef"),
    ("rlcore-dpo", "dpo", {**PAIRS, "loss": "kto"}, "desirable_weight undesirable_weight"),
    ("rlcore-dpo", "online_dpo", {**PAIRS, "loss": "simpo"}, "gamma"),
    ("rlcore-dpo", "online_dpo", {**PAIRS, "loss": "ipo"}, "average"),
    ("rlcore-rft", "rft", {"generations": 8, "improve_steps": 2, "start_percentile": 0.1, "history": 2, **PAIRS},
     "history end_percentile"),
    ("rlcore-reward", "reward", {**PAIRS, "max_length": 12}, "max_length"),
    ("rlcore-reward", "process_reward", {**PAIRS, "max_length": 12}, "max_length"),
    ("rlcore-ddpo", "ddpo", {**IMAGES, "stats": "prompt", "stats_size": 2, "stats_min_count": 1}, "stats stats_size"),
    ("rlcore-ddpo", "ddpo", {**IMAGES, "stats": "prompt", "stats_size": 8, "stats_min_count": 3}, "stats_min_count"),
]  # fmt: skip
"""Dist, trainer, options, and the options that have an effect beside those."""
BY_DAY = {"kl_coef", "sync_every", "clip_low", "is_high", "gamma", "nll", "history", "max_length"}
"""First options of the rows that are checked by day."""
OF_SERVER = dict.fromkeys(
    [f"server.{name}" for name in ("top_k", "tail", "concurrency", "timeout_s", "retries")],
    "is of a teacher on a server, and the kit's runs have a model as teacher",
)
SILENT = {
    "ppo": {
        "turn_gamma": "discounts from turn to turn of an episode, and the kit's prompts have one turn",
        "turn_lam": "discounts from turn to turn of an episode, and the kit's prompts have one turn",
        "is_correction": "weights tokens of another sampler; the built-in one has the log-probs of the policy",
        "is_high": "bounds weights of tokens of another sampler; the built-in one has the log-probs of the policy",
        "is_low": "bounds weights of tokens of another sampler; the built-in one has the log-probs of the policy",
    },
    "grpo": {
        "credit": "compares turns of episodes, and is refused without an environment",
        "turn_discount": "discounts from turn to turn of an episode, and the kit's prompts have one turn",
        "refill_batches": "bounds how often a round samples again, and the kit's rounds need fewer",
        "off_policy_mask": "compares with the log-probs of another sampler; the built-in one has those of the policy",
    },
    "dpo": {"cache_ref": "keeps the reference's log-probs for other runs, and changes none of them"},
    **dict.fromkeys(("distill", "distill_prompts"), OF_SERVER),
    "ddpo": {"cfg_in_training": "false is refused beside guidance, and changes nothing without"},
    "reward": {"tie_ratio": "is of pairs that are ties, and the kit's rows have none"},
}
"""Options that change no run of the kit → the reason."""
TIMES = {"dpo": {"precompute_ref": ("reference", "tables")}}
"""Options that decide when something is computed, and change rounding at most → where a checkpoint keeps it."""
NOT_AMPLIFYING = {"lr": 1e-2, "eps": 1e-3}
"""An optimizer that does not divide rounding errors by themselves."""


def changes_of(dist: str, trainer: str, options: Mapping[str, Any], root: object) -> Changes:
    found = cases(dist, options={trainer: options})
    (subject,) = (
        each.subject for each in found
        if each.law is an_accepted_change_has_its_effect and each.subject.it.name == trainer
    )  # fmt: skip
    return Changes(subject, str(root))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dist", "trainer", "options", "named"),
    [
        pytest.param(
            *case, id="-".join(case[1::2]), marks=[] if case[-1].split()[0] in BY_DAY else [pytest.mark.nightly]
        )
        for case in BESIDE
    ],
)
def test_an_option_that_needs_others_has_an_effect_in_a_resumed_run_too(
    dist: str, trainer: str, options: dict[str, Any], named: str, tmp_path: object
) -> None:
    changes = changes_of(dist, trainer, options, tmp_path)
    for name in named.split():
        changes.check(name)
    assert not changes.silent, changes.silent


@pytest.mark.nightly
@pytest.mark.parametrize(("dist", "trainer", "path"), [
    (dist, trainer, path) for dist, trainer in ALONE for path in SILENT.get(trainer, {})
])  # fmt: skip
def test_an_option_declared_to_have_no_effect_changes_no_run(
    dist: str, trainer: str, path: str, tmp_path: object
) -> None:
    changes = changes_of(dist, trainer, ALONE[dist, trainer], tmp_path)
    changes.check(path)
    assert changes.silent == [path]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dist", "trainer"),
    by_day(ALONE, ["rlcore-sft", "rlcore-ilql", ("rlcore-dpo", "dpo"), "rlcore-reinforce"]),
)
def test_every_option_has_an_effect_somewhere_or_the_reason_is_declared(
    dist: str, trainer: str, tmp_path: object
) -> None:
    changes = changes_of(dist, trainer, ALONE[dist, trainer], tmp_path)
    for path in changes.options:
        changes.check(path)
    beside = {path for _, name, _, named in BESIDE if name == trainer for path in named.split()}
    assert set(changes.silent) <= beside | set(SILENT.get(trainer, {})) | set(TIMES.get(trainer, {}))


@pytest.mark.parametrize(("dist", "trainer", "path"), [
    (dist, trainer, path) for dist, trainer in ALONE for path in TIMES.get(trainer, {})
])  # fmt: skip
def test_an_option_that_decides_when_something_is_computed_changes_rounding_alone_and_what_is_kept(
    dist: str, trainer: str, path: str, tmp_path: Path
) -> None:
    base = changes_of(dist, trainer, {**ALONE[dist, trainer], "optimizer": NOT_AMPLIFYING}, tmp_path).base
    now, later = (attrs.evolve(base, name=str(each), options={**base.options, path: each}) for each in (True, False))
    run(noisy(now))
    run(later)
    check_close(now, later, f"trainer.{path} only decides when something is computed")
    part, name = TIMES[trainer][path]
    kept, none = (checkpoint(each)["trainer"][part][name] for each in (now, later))
    assert kept
    assert none is None
