"""The laws of trainers, held in tiny runs on a model made on the spot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
from torch import Tensor

from rlcore.checkpoints.state import load_state, save_state
from rlcore.components import describe_error
from rlcore.config import structure
from rlcore.errors import CheckpointError, Diverged
from rlcore.settings import RunConfig
from rlcore.testing.law import LawBroken, Subject, law
from rlcore.testing.laws.trainer_invariance import (  # noqa: F401  laws of trainers, found in this module
    checkpoints_change_nothing,
    evaluation_changes_nothing,
    it_learns,
    micro_batches_change_nothing,
    padding_changes_nothing,
    same_seed_same_numbers,
    two_processes_equal_one,
)
from rlcore.testing.rig.compare_runs import check_equal, difference, steps
from rlcore.testing.rig.runs import Ran, Tiny, run, run_anew
from rlcore.training.inputs import DATA_INPUTS
from rlcore.types import Trajectories

KEPT = {"checkpoint": {"at_end": True}}
GOING_ON = {"run": {"resume": "auto"}}
FORGOTTEN = (
    "What is needed to go on at a yield and is neither in the policy nor in state_dict()? (the optimizer, the order of "
    "the data, a store that is not empty, a counter, a generator's state)"
)


@law("trainers")
def needs_and_budget_are_declared(subject: Subject) -> None:
    """`needs` names the inputs of `rlcore.train` that it cannot do without, and with these alone it makes a step.

    `default_budget` says how many `steps` or `epochs`, or how much `time_s`, a run takes if nothing else is said.
    """
    target: Any = subject.it.target()
    needs, budget = target.needs, target.default_budget
    unknown = [needs] if isinstance(needs, str) else [name for name in needs if name not in DATA_INPUTS]
    if unknown:
        raise LawBroken(f"expected `needs` to be a tuple of some of {', '.join(DATA_INPUTS)}; it has {unknown[0]!r}")
    units = ("steps", "epochs", "time_s")
    if not (isinstance(budget, Mapping) and budget and all(name in units for name in budget)):
        raise LawBroken(f"expected `default_budget` to set {' or '.join(units)}, as {{'steps': 100}}; it is {budget!r}")
    structure(RunConfig, dict(budget), where=f"default_budget of {subject.it.name}")
    with TemporaryDirectory() as root:
        sections = {"run": {"epochs": 1e-3, "steps": None}} if "epochs" in budget else {}
        try:
            run(Tiny.of(subject, root, steps=1, sections=sections))
        except Exception as error:
            raise LawBroken(
                f"expected a step with nothing given but {' and '.join(needs) or 'the model'}"
                f"{', counted in epochs' if sections else ''}; it raised {describe_error(error)}. Is an input missing "
                "in `needs`, or a call of run.plan_steps in __init__?"
            ) from error


@law("trainers")
def losses_are_finite(subject: Subject) -> None:
    """Each step yields metrics: plain numbers under names like `loss/policy`; those of the group `loss` are finite."""
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root)
        try:
            rows = run(tiny).watch.told("on_step")
        except Diverged as error:
            raise LawBroken(f"expected finite losses on a tiny model; {error}") from error
    if not rows:
        raise LawBroken("expected steps() to yield; it ended before its first step")
    for step, row in enumerate(rows, start=1):
        own = {name: value for name, value in row.items() if name != "time/step_s" and not name.startswith("perf/")}
        if not own:
            raise LawBroken(f"expected metrics from step {step}; it yielded none: say at least what the loss was")
        for name, value in own.items():
            if not isinstance(name, str) or not re.fullmatch(r"[^\s/]+(/[^\s/]+)*", name) or name.startswith("eval/"):
                raise LawBroken(
                    f"expected metrics named `group/name`, none of the group eval, which is the evaluations'; "
                    f"step {step} yielded {name!r}"
                )
            if not isinstance(value, (float, int)):
                raise LawBroken(f"expected numbers; step {step} yielded {name} = {value!r:.60}: make it a float")
            if name.startswith("loss/") and not math.isfinite(value):
                raise LawBroken(f"expected finite losses; step {step} yielded {name} = {value}")


@law("trainers")
def every_parameter_meant_to_train_moves(subject: Subject) -> None:
    """After a few steps no parameter of `policy().module` that requires a gradient is what it was."""
    with TemporaryDirectory() as root:
        ran = run(Tiny.of(subject, root))
    still = [name for name, weight in _trained(ran) if weight.requires_grad and ran.watch.before[name].equal(weight)]
    if still:
        raise LawBroken(
            f"expected every parameter to move within {ran.tiny.steps} steps; {_listed(still)} did not. Is it in the "
            "optimizer (run.updater), and does the loss depend on it? Freeze what is not to train (requires_grad)"
        )


@law("trainers")
def frozen_parameters_stay(subject: Subject) -> None:
    """What the user has frozen (here with `model.unfrozen_layers`) is bit for bit what it was, and the rest trains."""
    with TemporaryDirectory() as root:
        ran = run(Tiny.of(subject, root, sections={"model": {"unfrozen_layers": 1}}))
    moved = [name for name, weight in _trained(ran) if not ran.watch.before[name].equal(weight)]
    wrong = [name for name in moved if name in ran.watch.frozen]
    if wrong:
        raise LawBroken(
            f"expected the frozen layers to stay; {_listed(wrong)} moved. Does the trainer thaw, or its optimizer "
            "hold, parameters that require no gradient when run.build_policy returns?"
        )
    if not moved:
        raise LawBroken("expected the layers that are not frozen to train; nothing moved")


@law("trainers")
def resume_is_exact(subject: Subject) -> None:
    """A run that is stopped and goes on, in a new process too, ends to the last bit where one without a stop does."""
    with TemporaryDirectory() as root:
        whole = Tiny.of(subject, root, name="whole", steps=4, model="gpt2", sections=KEPT)
        run(whole)
        parts = attrs.evolve(whole, name="parts")
        # After one step a round of several is not over; after three, more has come together.
        run(attrs.evolve(parts, stop_in=1))
        run(attrs.evolve(parts, stop_in=3, sections=KEPT | GOING_ON))
        if found := difference(steps(whole)[:3], steps(parts), "step"):
            raise LawBroken(f"expected the same to the last bit; {found}. {FORGOTTEN}")
        run_anew(attrs.evolve(parts, sections=KEPT | GOING_ON), "going on from a checkpoint")
        check_equal(whole, parts, FORGOTTEN, checkpoints=True)


@law("trainers")
def stop_is_honoured_at_a_yield(subject: Subject) -> None:
    """Ctrl-C in the middle of a step ends the run after that step, with a checkpoint that goes on."""
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, steps=4, sections=KEPT)
        stopped = run(attrs.evolve(tiny, stop_in=2)).result.run.step
        saved = sorted(path.name for path in (tiny.dir / "checkpoints").glob("[0-9]*"))
        if stopped != 2 or not saved or int(saved[-1]) != 2:
            raise LawBroken(
                f"expected Ctrl-C in step 2 to end the run at step 2, with a checkpoint; it ended at step {stopped}, "
                f"with {', '.join(saved) or 'none'}. Leave SIGINT and SIGTERM to the core"
            )
        resumed = run(attrs.evolve(tiny, steps=3, sections=GOING_ON)).result.run.step
        if resumed != 3:
            raise LawBroken(f"expected the run to go on from step 2 to step 3; it ended at step {resumed}")


@law("trainers")
def state_dict_is_plain(subject: Subject) -> None:
    """`state_dict` holds what a checkpoint can hold, and `load_state_dict` of another trainer puts all of it back."""
    with TemporaryDirectory() as root:
        state = run(Tiny.of(subject, root, name="one")).watch.trainer.state_dict()
        file = Path(root) / "state.safetensors"
        try:
            save_state(file, state)
        except CheckpointError as error:
            raise LawBroken(f"expected a state_dict() that can be saved; {error}") from error
        loaded = load_state(file)
        if found := difference(state, loaded, "state_dict()"):
            raise LawBroken(f"expected state_dict() to come back from disk as it was; {found}. Hold plain values in it")
        fresh = run(Tiny.of(subject, root, name="other", steps=0)).watch.trainer
        fresh.load_state_dict(load_state(file))
        if found := difference(loaded, fresh.state_dict(), "state_dict()"):
            raise LawBroken(f"expected load_state_dict to put back all that state_dict() holds; {found}")


@law("trainers")
def events_come_in_order(subject: Subject) -> None:
    """Plugins hear of a run's start, of each step, evaluation and checkpoint after it, and of the end, once each.

    A trainer that samples and rewards tells them of the rollouts before the step that learns from them.
    """
    sections = {"eval": {"every": 1, "at_start": True}, "checkpoint": {"every": 1}}
    with TemporaryDirectory() as root:
        ran = run(Tiny.of(subject, root, sections=sections).evaluated())
    heard = [hook for hook, _ in ran.watch.heard]
    alone = [hook for hook in heard if hook != "on_rollout"]
    expected = ["on_run_start", "on_evaluate", *["on_step", "on_evaluate", "on_checkpoint"] * 3, "on_run_end"]
    if alone != expected:
        raise LawBroken(
            f"expected {', '.join(expected)}; heard {', '.join(alone)}. The core tells of all but rollouts: call no "
            "other method of run.observers"
        )
    if "reward_fn" not in subject.it.target().needs:
        return
    if "on_rollout" not in heard[: heard.index("on_step")]:
        raise LawBroken(
            "expected on_rollout before the first on_step; it came "
            f"{'later' if 'on_rollout' in heard else 'never'}. Call run.observers.on_rollout(run, batch) once a batch "
            "is sampled and rewarded"
        )
    for batch in ran.watch.told("on_rollout"):
        if not isinstance(batch, Trajectories) or not bool(batch.action_mask.any()):
            raise LawBroken(
                f"expected on_rollout to be told Trajectories with chosen tokens; it was told {batch!r:.60}"
            )


def _trained(ran: Ran) -> list[tuple[str, Tensor]]:
    return list(ran.result.policy.module.named_parameters())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
