"""A run of any trainer goes on with another number of processes by `run.resume=auto` alone, and learns the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from small_trainers import TRAINERS, subject_of

from rlcore_testing.rig.compare_runs import check_close
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.rig.runs import Tiny, noisy, run, run_described, steady_options

FIRST = {"checkpoint": {"at_end": True}}
RESUMED = {**FIRST, "run": {"resume": "auto"}}


def run_all(descriptions: Sequence[Mapping[str, Any]]) -> int:
    """Execute one run after another."""
    return sum(run_described(each) for each in descriptions)


def copied(tiny: Tiny, name: str, **changes: Any) -> Tiny:
    """Return a run that continues in a copy of the folder of another one."""
    copy = attrs.evolve(tiny, name=name, sections=RESUMED, **changes)
    shutil.copytree(tiny.dir, copy.dir)
    return copy


def changes_of(tiny: Tiny) -> list[dict[str, Any]]:
    newest = max((tiny.dir / "checkpoints").glob("[0-9]*"))
    return json.loads((newest / "manifest.json").read_text(encoding="utf-8"))["changed_processes"]


BY_DAY = {trainer for _, trainer in TRAINERS} & {"sft", "ppo", "dpo"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(BY_DAY, id=",".join(sorted(BY_DAY))),
        pytest.param({trainer for _, trainer in TRAINERS} - BY_DAY, id="others", marks=pytest.mark.nightly),
    ],
)
def test_a_run_of_every_trainer_continues_on_two_processes_and_on_one_again(names: set[str], tmp_path: Path) -> None:
    alone, changing = [], []
    for (dist, trainer), options in TRAINERS.items():
        if trainer not in names:
            continue
        subject = subject_of(dist, trainer, options)
        base = Tiny.of(
            subject, str(tmp_path), name=trainer, steps=1, options=steady_options(subject), rollouts="scripted",
            sections=FIRST,
        )  # fmt: skip
        run(base)
        alone.append(copied(base, f"{trainer}-alone", steps=2))
        changing.append(copied(base, f"{trainer}-changing", steps=2))
        run(noisy(alone[-1]))
    dropping = Tiny.of(
        subject_of("rlcore-sft", "sft", {"batch_size": 4}), str(tmp_path), name="dropping", steps=1, sections=FIRST,
        model="dropping_t5",
    )  # fmt: skip
    run(dropping)
    dropping = attrs.evolve(dropping, sections=RESUMED, steps=2)
    described = [attrs.asdict(each) for each in (*changing, dropping)]
    call_on_two_ranks("test_elastic_resume:run_all", {"descriptions": described}, what="resuming on two processes")
    for one, two in zip(alone, changing, strict=True):
        for each in (noisy(one), two):
            run(attrs.evolve(each, steps=3))
        check_close(one, two, f"{two.trainer} has been resumed on two processes")
        assert changes_of(one) == []
        assert [(each["step"], each["was"], each["now"]) for each in changes_of(two)] == [(1, 1, 2), (2, 2, 1)]
    assert changes_of(dropping) == [{"step": 1, "was": 1, "now": 2, "is_exact": False}]
