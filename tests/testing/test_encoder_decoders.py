"""Algorithms that know of no encoder keep the laws of trainers on encoder-decoders too."""

from __future__ import annotations

from typing import Any

import pytest
from depths import SLOW_LAWS
from laws_held import assert_kept, law_name
from sites import installed

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import trainers
from rlcore_testing.rig import runs

pytestmark = pytest.mark.slow
TRAINERS: dict[str, dict[str, Any]] = {
    "rlcore-ppo:ppo": {"rollouts": 8, "batch_size": 4, "bootstrap_truncated": True},
    "rlcore-sft:sft": {"batch_size": 4},
    "rlcore-ilql:ilql": {"batch_size": 4},
}
SLOW = {"two_processes_equal_one", "divided_weights_equal_whole_ones", "it_learns"}
OF_DECODERS = {"the_temperature_divides_the_logits", "the_text_of_an_environment_is_not_learned"}
"""Laws with a decoder-only model of their own."""
OF_ORACLES = {"it_equals_its_oracle", "two_processes_equal_the_oracle"}
"""Laws about plugins that state their loss, which they do for decoders."""
OF_SAMPLES = {"every_token_of_the_reference_counts"}
"""Laws about trainers that sample."""
READING = {"padding_changes_nothing", "micro_batches_change_nothing", "every_trainable_parameter_changes"}
"""Laws about how batches are read, which families do in ways of their own."""
LONG = (SLOW_LAWS | {"checkpoints_change_nothing", "evaluation_changes_nothing"}) - {"resume_is_exact"}
"""Laws that train several times: on decoders they are checked by day."""
HELD = [
    pytest.param(model, law, marks=[pytest.mark.nightly] if law.name in LONG else [])
    for law in laws_in(trainers)
    for model in ("t5", "bart")
    if law.name not in SLOW | OF_DECODERS | OF_ORACLES and (model == "t5" or law.name in READING)
]


@pytest.mark.parametrize(("model", "law"), HELD, ids=lambda each: each if isinstance(each, str) else law_name(each))
@pytest.mark.parametrize("trainer", TRAINERS)
def test_encoder_decoders_keep_the_law(trainer: str, model: str, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    described = runs.Tiny.of

    def of_model(*args: Any, **changes: Any) -> runs.Tiny:
        drops = changes.get("model") in runs.DROPPING
        return described(*args, **{**changes, "model": f"dropping_{model}" if drops else model})

    monkeypatch.setattr(runs.Tiny, "of", of_model)
    but = OF_SAMPLES if trainer != "rlcore-ppo:ppo" else ()
    assert_kept(law, installed("trainers", trainer, **TRAINERS[trainer]), but=but)
