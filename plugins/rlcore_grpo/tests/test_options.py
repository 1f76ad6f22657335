from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import make

from rlcore.errors import ConfigError
from rlcore_grpo.config import PRESETS, GRPOConfig


def test_bounds_for_tokens_never_clip_the_ratio_of_a_response(tmp_path: Path) -> None:
    """The mean over a response moves much less than its tokens do: the preset's bounds are those of its paper."""
    fractions = []
    for i, bounds in enumerate(({}, {"clip_low": 0.2, "clip_high": 0.2})):
        trainer = make(tmp_path / str(i), preset="gspo", iterations=2, optimizer={"lr": 3e-4}, **bounds)
        metrics = next(trainer.steps())
        fractions.append(metrics["policy/clip_low_fraction"] + metrics["policy/clip_high_fraction"])
    assert fractions[0] > 0
    assert fractions[1] == 0


def test_corrections_are_refused_where_sampler_and_trainer_have_other_distributions(tmp_path: Path) -> None:
    """TRL #6789 compares log-probs before and after top-k and top-p."""
    with pytest.raises(ConfigError, match=r"is_correction = 'token_mask': with gen.top_k"):
        make(tmp_path, is_correction="token_mask", gen={"top_k": 3})


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_set_defaults_that_options_override(preset: str) -> None:
    chosen = GRPOConfig(preset=preset)
    for name, value in PRESETS[preset].items():
        assert getattr(chosen, name) == value
        assert getattr(GRPOConfig(), name) != value
    assert GRPOConfig(preset=preset, norm="token", clip_low=0.1).norm == "token"
    assert GRPOConfig(preset=preset, norm="token", clip_low=0.1).clip_low == 0.1


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_trains(tmp_path: Path, preset: str) -> None:
    trainer = make(tmp_path, preset=preset)
    before = copy.deepcopy(trainer.policy().module.state_dict())
    metrics = next(trainer.steps())
    assert all(math.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(value, before[name]) for name, value in trainer.policy().module.state_dict().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_generations": 1}, "trainer.num_generations = 1: a response is compared with others"),
        (
            {"rollouts": 10},
            "trainer.rollouts = 10: is not a multiple of trainer.num_generations = 4; set it to 8 or 12",
        ),
        ({"minibatches": 4}, "trainer.minibatches = 4: a round has 3 groups"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "trainer.kl_estimator = 'k1': its gradient in the loss is 0"),
        ({"is_low": 3.0, "is_correction": "token_mask"}, "trainer.is_low = 3.0: is above trainer.is_high = 2.0"),
        ({"combine": "normalize_then_sum", "scale": "none"}, "trainer.scale = 'none': combine: normalize_then_sum"),
        ({"combine": "normalize_then_sum", "preset": "dr_grpo"}, "trainer.scale = 'none': combine: normalize_then_sum"),
        ({"overlong_buffer": 7.0}, "trainer.overlong_buffer = 7: is above gen.max_new_tokens = 6"),
        ({"kl_in": "reward"}, "trainer.kl_in = 'reward': there is no KL; set trainer.kl_coef above 0"),
        ({"kl_estimator": "k2"}, "trainer.kl_estimator = 'k2': there is no KL"),
        ({"kl_ratio": True}, "trainer.kl_ratio = True: there is no KL in the loss"),
        ({"kl_ratio": True, "preset": "rloo"}, "trainer.kl_ratio = True: there is no KL in the loss"),
        ({"sync_ref_alpha": 0.5, "kl_coef": 0.1}, "trainer.sync_ref_alpha = 0.5: the reference stays"),
        ({"cispo_cap": 2.0}, "trainer.cispo_cap = 2.0: it is the bound of cispo"),
        ({"dual_clip": 3.0, "preset": "cispo"}, "trainer.dual_clip = 3.0: surrogate: cispo has other bounds"),
        ({"clip_low": 0.1, "surrogate": "sapo"}, "trainer.clip_low = 0.1: surrogate: sapo"),
        ({"clip_high": 0.1, "surrogate": "sapo"}, "trainer.clip_high = 0.1: surrogate: sapo"),
        ({"level": "product", "preset": "vespo"}, "trainer.level = 'product': surrogate: vespo has a ratio of its own"),
        ({"clip_low": 0.1, "preset": "vespo"}, "trainer.clip_low = 0.1: surrogate: vespo has other bounds"),
        ({"vespo_k": 1.0}, "trainer.vespo_k = 1.0: it belongs to another surrogate"),
        ({"sapo_tau": 2.0, "preset": "vespo"}, "trainer.sapo_tau = 2.0: it belongs to another surrogate"),
        (
            {"preset": "vespo", "is_correction": "sequence_mask"},
            "trainer.is_correction = 'sequence_mask': surrogate: vespo multiplies",
        ),
        ({"refill_batches": 3}, "trainer.refill_batches = 3: groups are not refilled"),
        ({"overlong_penalty": 3.0}, "trainer.overlong_penalty = 3.0: no length is too long"),
        ({"is_low": 0.5}, "trainer.is_low = 0.5: no weight is computed; set trainer.is_correction"),
        ({"is_high": 3.0}, "trainer.is_high = 3.0: no weight is computed; set trainer.is_correction"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **options)
    assert said in str(caught.value)
