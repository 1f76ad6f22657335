"""Every field of a checkpoint matters: a resumed run differs if a field is not what the run has saved."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from depths import by_day
from small_teacher import TEACHER
from torch import Tensor

from rlcore.checkpoints.manifest import OWN_FIELDS, write_manifest
from rlcore.checkpoints.state import load_state, save_state
from rlcore_testing.cases import cases
from rlcore_testing.law import Subject
from rlcore_testing.laws.trainer_options import an_accepted_change_has_its_effect
from rlcore_testing.rig.compare_runs import MEASURED, difference, steps, weights
from rlcore_testing.rig.runs import Tiny, run

FAST = {"optimizer": {"lr": 1e-2, "scheduler": "step", "scheduler_options": {"step_size": 3}}}
DISTILL = {"teacher": TEACHER, "batch_size": 4, "on_policy": 0.3}
TRAINERS: dict[tuple[str, str], dict[str, Any]] = {
    ("rlcore-sft", "sft"): {"batch_size": 4, **FAST},
    ("rlcore-ppo", "ppo"): {
        "rollouts": 8, "batch_size": 4, "epochs": 1, "kl_coef": 0.1, "kl_target": 0.5, "kl_horizon": 20,
        "score_scaling": "running", **FAST,
    },
    ("rlcore-ilql", "ilql"): {"batch_size": 4, "sync_every": 3, "target_rate": 0.5, **FAST},
    ("rlcore-grpo", "grpo"): {"rollouts": 8, "num_generations": 2, "kl_coef": 0.5, "sync_ref_every": 3, **FAST},
    ("rlcore-dpo", "dpo"): {"batch_size": 4, "cache_ref": False, **FAST},
    ("rlcore-dpo", "online_dpo"): {"batch_size": 4, **FAST},
    ("rlcore-distill", "distill"): {**DISTILL, **FAST},
    ("rlcore-distill", "distill_prompts"): {**DISTILL, **FAST},
    ("rlcore-reinforce", "reinforce"): {"rollouts": 8, **FAST},
    ("rlcore-rft", "rft"): {"generations": 8, "improve_steps": 2, "history": 2, "batch_size": 5, **FAST},
    ("rlcore-reward", "reward"): {"batch_size": 4, **FAST},
    ("rlcore-ddpo", "ddpo"): {
        "rollouts": 5, "batch_size": 3, "steps": 2, "clip_range": 0.05, "stats": "prompt", "stats_min_count": 1, **FAST,
    },
}  # fmt: skip
"""Dist and trainer → options that give the trainer all the state it can have."""
COMPARED = {
    "trainer.updater.schedule.options": "compared with the present options (tests/optim/test_changed_options.py)",
    "trainer.updater.built": "compared with the present options (tests/optim/test_changed_options.py)",
    "trainer.updater.schedule.scheduler": "of the schedule, which itself decides what it reads",
    "trainer.updater.optimizer.param_groups": "of the optimizer, which itself decides what it reads",
}
"""Fields that are not restored, or not all of them → the reason."""
SAVED, LAST = 2, 3
"""Steps of the checkpoint, and of the resumed run."""
LONG_S = 1e6
SECTIONS = {"checkpoint": {"at_end": True}, "eval": {"every": 1}}
RESUMED = {"checkpoint": {"at_end": True}, "run": {"resume": "auto"}}


def subject_of(dist: str, trainer: str, options: Mapping[str, Any]) -> Subject:
    found = cases(dist, options={trainer: options})
    return next(
        each.subject for each in found
        if each.law is an_accepted_change_has_its_effect and each.subject.it.name == trainer
    )  # fmt: skip


def fields_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of every number, text and tensor in a plain state."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from fields_in(part, (*path, key))
    elif value is not None:
        yield path, value


def kinds_of(state: Any) -> dict[str, tuple[Any, ...]]:
    """Return one path for each kind of field; paths that differ in numbers alone are of one kind."""
    return {re.sub(r"\d+", "#", ".".join(map(str, path))): path for path, _ in fields_in(state)}


def other(value: Any) -> Any:
    """Return another value of the same type; of a tensor, one with another element in the middle."""
    if isinstance(value, Tensor):
        changed = value.clone()
        flat = changed.view(-1)
        middle = len(flat) // 2
        flat[middle] = other(flat[middle].item())
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 if value > 1 else value + 1
    return f"{value}x" if isinstance(value, str) else value * 1.5 + 0.25


def with_other(state: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a state with another value at a path."""
    if not path:
        return other(state)
    first, *rest = path
    copy = dict(state) if isinstance(state, Mapping) else list(state)
    copy[first] = with_other(state[first], tuple(rest))
    return copy


class Resumed:
    """Runs of one trainer that are resumed from one checkpoint, each with another value of one field."""

    def __init__(self, subject: Subject, root: Path) -> None:
        base = Tiny.of(subject, str(root), name="base", steps=SAVED, model="gpt2", sections=SECTIONS).evaluated()
        run(base)
        self.base, self.number = attrs.evolve(base, inputs=Tiny.of(subject, str(root)).evaluated().inputs), 0
        self.folder = next((base.dir / "checkpoints").glob(f"*{SAVED}"))
        self.state = load_state(self.folder / "trainer.safetensors")
        self.rng = load_state(self.folder / "rng.safetensors")
        self.expected = self.outcome(self.state, self.rng)

    def outcome(self, state: Any, rng: Any) -> Any:
        """Resume with these contents of the checkpoint; return all that the run writes, or the name of its error."""
        self.number += 1
        tiny = attrs.evolve(self.base, name=f"resumed-{self.number}", steps=LAST, sections=RESUMED)
        shutil.copytree(self.base.dir, tiny.dir)
        folder = tiny.dir / "checkpoints" / self.folder.name
        save_state(folder / "trainer.safetensors", state)
        save_state(folder / "rng.safetensors", rng)
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        further = {name: value for name, value in manifest.items() if name not in OWN_FIELDS}
        write_manifest(folder, step=SAVED, score=manifest["score"], further=further)
        try:
            run(tiny)
        except Exception as error:  # noqa: BLE001  any failure is visible
            return type(error).__name__
        newest = max((tiny.dir / "checkpoints").glob("[0-9]*"))
        after = load_state(newest / "trainer.safetensors")
        after["elapsed_s"] = after["elapsed_s"] > LONG_S
        after["metrics"] = {name: each for name, each in after["metrics"].items() if not name.startswith(MEASURED)}
        return {
            "state": after, "rng": load_state(newest / "rng.safetensors"), "steps": steps(tiny),
            "weights": weights(tiny.dir),
        }  # fmt: skip

    def ignores(self, state: Any, rng: Any) -> bool:
        found = self.outcome(state, rng)
        return not isinstance(found, str) and not difference(self.expected, found, "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dist", "trainer"),
    by_day(TRAINERS, ["rlcore-sft", "rlcore-grpo"]),
)
def test_every_field_of_a_trainer_matters_in_a_resumed_run(dist: str, trainer: str, tmp_path: Path) -> None:
    resumed = Resumed(subject_of(dist, trainer, TRAINERS[dist, trainer]), tmp_path)
    assert not isinstance(resumed.expected, str), resumed.expected
    kinds = {kind: path for kind, path in kinds_of(resumed.state).items() if kind.startswith("trainer.")}
    assert len(kinds) > 8
    ignored = [
        kind for kind, path in kinds.items()
        if not kind.startswith(tuple(COMPARED)) and resumed.ignores(with_other(resumed.state, path), resumed.rng)
    ]  # fmt: skip
    assert not ignored


@pytest.mark.slow
def test_every_field_of_a_run_and_of_its_random_generators_matters_in_a_resumed_run(tmp_path: Path) -> None:
    resumed = Resumed(subject_of("rlcore-reinforce", "reinforce", {"rollouts": 8}), tmp_path)
    state, rng = resumed.state, resumed.rng
    assert state.keys() == {"trainer", "step", "elapsed_s", "metrics", "evaluated_at", "score"}
    lasting = next(name for name in state["metrics"] if name.startswith("eval/") and not name.startswith(MEASURED))
    changes = {name: {**state, name: other(state[name])} for name in ("step", "evaluated_at")}
    changes["metrics"] = {**state, "metrics": {**state["metrics"], lasting: -7.0}}
    changes["score"] = {**state, "score": -7.0}
    changes["elapsed_s"] = {**state, "elapsed_s": 2 * LONG_S}
    assert [name for name, changed in changes.items() if resumed.ignores(changed, rng)] == []
    kinds = kinds_of(rng)
    assert kinds.keys() >= {
        "ranks.#.torch",
        "ranks.#.generators.run",
        "ranks.#.python.#.#",
        "ranks.#.numpy.state.key.#",
    }
    version = kinds.pop("ranks.#.python.#")  # of the form in which Python writes its state; another one is converted
    assert version == ("ranks", 0, "python", 0)
    assert [kind for kind, path in kinds.items() if resumed.ignores(state, with_other(rng, path))] == []
