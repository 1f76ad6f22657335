"""The kit's bad number reaches the models of trainers that read no log-probs of tokens and no scores of sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore_testing.cases import cases
from rlcore_testing.laws.trainer_numbers import a_bad_number_stops_the_run_or_is_counted, outcome
from rlcore_testing.rig.rollouts import PLACES
from rlcore_testing.rig.runs import Tiny, eager_options

TRAINERS: list[tuple[str, str, dict[str, Any]]] = [
    ("rlcore-reward", "process_reward", {"batch_size": 4}),
    ("rlcore-ddpo", "ddpo", {"rollouts": 6, "batch_size": 3, "steps": 2, "clip_range": 0.05}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dist", "trainer", "options"), TRAINERS, ids=str)
def test_an_activation_that_is_no_number_ends_the_run_of_a_model_of_any_kind(
    tmp_path: Path, dist: str, trainer: str, options: dict[str, Any]
) -> None:
    law, found = a_bad_number_stops_the_run_or_is_counted, cases(dist, options={trainer: options})
    subject = next(each.subject for each in found if each.law is law and each.subject.it.name == trainer)
    reached = []
    for place in PLACES:
        bad = {"place": place, "value": "nan"}
        tiny = Tiny.of(
            subject, str(tmp_path), name=place, options=eager_options(subject), steps=1, rollouts="sampled", bad=bad
        )
        ended = outcome(tiny)
        reached += [place] if ended.get("stopped") or ended["reached"] else []
        if place == "activation":
            assert ended["stopped"].startswith("Diverged: step 1: loss/")
    assert set(reached) - {"reward"} == {"gradient", "activation"}
