"""Laws of trainers, checked in short runs on small random models."""

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
from rlcore.loggers import place_in
from rlcore.protocols import TrainerTraits
from rlcore.settings import OptimizerConfig, RunConfig
from rlcore.training.inputs import DATA_INPUTS
from rlcore.types import Trajectories
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.laws.trainer_devices import host_and_device_do_not_mix  # noqa: F401  a law of trainers, found here
from rlcore_testing.laws.trainer_invariance import (  # noqa: F401  the same
    checkpoints_change_nothing,
    divided_weights_equal_whole_ones,
    evaluation_changes_nothing,
    it_learns,
    micro_batches_change_nothing,
    padding_changes_nothing,
    same_seed_same_numbers,
    two_processes_equal_one,
)
from rlcore_testing.laws.trainer_numbers import (  # noqa: F401  the same
    a_bad_number_on_one_rank_stops_the_run_or_is_counted,
    a_bad_number_stops_the_run_or_is_counted,
)
from rlcore_testing.laws.trainer_options import an_accepted_change_has_its_effect  # noqa: F401  the same
from rlcore_testing.laws.trainer_oracle import (  # noqa: F401  the same
    it_equals_its_oracle,
    two_processes_equal_the_oracle,
)
from rlcore_testing.laws.trainer_scores import (  # noqa: F401  the same
    every_token_of_the_reference_counts,
    the_temperature_divides_the_logits,
    the_text_of_an_environment_is_not_learned,
)
from rlcore_testing.rig.compare_runs import check_equal, difference, steps
from rlcore_testing.rig.runs import FinishedRun, Tiny, reads_tokens, run, run_in_new_process
from rlcore_testing.rig.watch import GradientWatch

CHECKPOINT_AT_END = {"checkpoint": {"at_end": True}}
RESUME = {"run": {"resume": "auto"}}
OF_THE_CORE = ("time/step_s", "perf/", "grad/skipped")
"""Beginnings of the metrics that the core adds to those of a trainer."""
STATE_ADVICE = (
    "state_dict() must hold all state outside the policy that a resumed run needs at a yield: the optimizer, the order "
    "of the data, a store that is not empty, counters, generator states"
)


@law("trainers")
def needs_and_budget_are_declared(subject: Subject) -> None:
    """`needs` names the required inputs of `rlcore.train`, and a run with only these inputs completes a step.

    `default_budget` sets the `steps`, `epochs` or `time_s` of a run whose configuration sets none of them.
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
                f"expected a run with only {' and '.join(needs) or 'the model'} to complete a step"
                f"{' (budget in epochs)' if sections else ''}; it raised {describe_error(error)}. Add missing inputs "
                "to `needs`, and call run.plan_steps in __init__"
            ) from error


@law("trainers")
def losses_are_finite(subject: Subject) -> None:
    """Each step yields metrics: numbers with names like `loss/policy`. Metrics of the group `loss` are finite.

    If the trainer has a `headline`, one of the metrics that it names is among them.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root)
        try:
            rows = run(tiny).watch.arguments_of("on_step")
        except Diverged as error:
            raise LawBroken(f"expected finite losses on a tiny model; {error}") from error
    if not rows:
        raise LawBroken("expected steps() to yield metrics; it returned before its first step")
    headline = TrainerTraits(subject.it.target()).headline
    if headline and all(place_in(headline, name) == len(headline) for row in rows for name in row):
        raise LawBroken(f"expected a metric of `headline`, {', '.join(headline)}; steps() yielded {', '.join(rows[0])}")
    for step, row in enumerate(rows, start=1):
        own = {name: value for name, value in row.items() if not name.startswith(OF_THE_CORE)}
        if not own:
            raise LawBroken(f"expected metrics from step {step}; it yielded none: yield at least the loss")
        for name, value in own.items():
            if not isinstance(name, str) or not re.fullmatch(r"[^\s/]+(/[^\s/]+)*", name) or name.startswith("eval/"):
                raise LawBroken(
                    f"expected metrics named `group/name`, in a group other than eval, which is reserved for "
                    f"evaluations; step {step} yielded {name!r}"
                )
            if not isinstance(value, (float, int)):
                raise LawBroken(f"expected numbers; step {step} yielded {name} = {value!r:.60}: convert it to float")
            if name.startswith("loss/") and not math.isfinite(value):
                raise LawBroken(f"expected finite losses; step {step} yielded {name} = {value}")


@law("trainers")
def every_trainable_parameter_changes(subject: Subject) -> None:
    """A few steps change every parameter of `policy().module` that requires a gradient.

    Where a loss depends on log-probs that `policy.score` returns, it depends on that of the first chosen token of some
    sequence, and on that of the last, such as EOS. `policy()` returns the same object in every call.
    """
    with TemporaryDirectory() as root:
        ran = run(Tiny.of(subject, root), GradientWatch)
    assert isinstance(ran.watch, GradientWatch)  # noqa: S101  for the type checker
    for place, is_learned in ran.watch.learned.items():
        if not is_learned:
            raise LawBroken(
                f"expected a loss of log-probs to depend on that of the {place} chosen token of some sequence; its "
                "gradient is 0 in every step. Column t of log-probs and of `action_mask` is about token t: do not "
                "shift them against each other, and keep EOS, the last chosen token, in the loss"
            )
    if ran.watch.trainer.policy() is not ran.watch.trainer.policy():
        raise LawBroken("expected policy() to return the same object in every call; keep what run.build returned")
    still = [name for name, weight in _trained(ran) if weight.requires_grad and ran.watch.before[name].equal(weight)]
    if still:
        raise LawBroken(
            f"expected every parameter to change within {ran.tiny.steps} steps; {_listed(still)} did not. Pass all "
            "parameters to the optimizer (run.updater), and set requires_grad to False where the loss does not depend "
            "on a parameter"
        )


@law("trainers", when=reads_tokens)
def frozen_parameters_stay(subject: Subject) -> None:
    """Layers that the user has frozen (here with `model.unfrozen_layers`) stay bit-identical; the others train."""
    with TemporaryDirectory() as root:
        own = run(Tiny.of(subject, root, name="own", steps=0)).watch.frozen  # by the policy, such as target networks
        ran = run(Tiny.of(subject, root, sections={"model": {"unfrozen_layers": 1}}))
    moved = [name for name, weight in _trained(ran) if not ran.watch.before[name].equal(weight)]
    wrong = [name for name in moved if name in ran.watch.frozen - own]
    if wrong:
        raise LawBroken(
            f"expected frozen layers to stay unchanged; {_listed(wrong)} changed. Do not set requires_grad on "
            "parameters that run.build returns frozen, and do not pass them to the optimizer"
        )
    if not moved:
        raise LawBroken("expected the layers that are not frozen to train; no parameter changed")


def _names_an_optimizer(subject: Subject) -> bool:
    """Return whether it has an option `optimizer`, of the type `OptimizerConfig`."""
    return isinstance(getattr(subject.config(), "optimizer", None), OptimizerConfig)


@law("trainers", when=_names_an_optimizer)
def schedules_last_as_long_as_the_run(subject: Subject) -> None:
    """A linear learning-rate schedule, made by `run.updater`, never falls faster than the steps of the run pass."""
    optimizer = {"lr": 1e-3, "scheduler": "linear", "scheduler_options": {}, "warmup_steps": 0}
    options = {**subject.options, "optimizer": {**subject.options.get("optimizer", {}), **optimizer}}
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, options=options)
        for step, rates in enumerate(run(tiny).watch.rates, start=1):
            lowest, due = min(rates, default=math.inf), 1e-3 * (1 - step / tiny.steps)
            if lowest < due - 1e-9:
                raise LawBroken(
                    f"expected a linear schedule of {tiny.steps} steps to have a rate of at least {due:.3g} after step "
                    f"{step}; it is {lowest:.3g}. Pass `updates_per_step`, the optimizer steps between two yields, to "
                    "run.updater, and count a smaller last minibatch as a step too"
                )


@law("trainers")
def resume_is_exact(subject: Subject) -> None:
    """A run that is interrupted and resumed, also in a new process, ends bit-identical to an uninterrupted run."""
    with TemporaryDirectory() as root:
        whole = Tiny.of(subject, root, name="whole", steps=4, model="gpt2", sections=CHECKPOINT_AT_END)
        run(whole)
        parts = attrs.evolve(whole, name="parts")
        # Step 1 is inside a round of several steps; by step 3 more state has accumulated.
        run(attrs.evolve(parts, stop_in=1))
        run(attrs.evolve(parts, stop_in=3, sections=CHECKPOINT_AT_END | RESUME))
        if found := difference(steps(whole)[:3], steps(parts), "step"):
            raise LawBroken(f"expected bit-identical metrics; {found}. {STATE_ADVICE}")
        run_in_new_process(attrs.evolve(parts, sections=CHECKPOINT_AT_END | RESUME), "resuming from a checkpoint")
        check_equal(whole, parts, STATE_ADVICE, checkpoints=True)


@law("trainers")
def stop_is_honoured_at_a_yield(subject: Subject) -> None:
    """Ctrl-C in the middle of a step ends the run after that step, with a checkpoint from which it can resume.

    It is pressed before the step's first optimizer step, or at the yield if the step makes none.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, steps=4, sections=CHECKPOINT_AT_END)
        stopped = run(attrs.evolve(tiny, stop_in=2)).result.run.step
        saved = sorted(path.name for path in (tiny.dir / "checkpoints").glob("[0-9]*"))
        if stopped != 2 or not saved or int(saved[-1]) != 2:
            raise LawBroken(
                f"expected Ctrl-C in step 2 to end the run at step 2, with a checkpoint; it ended at step {stopped}, "
                f"with {', '.join(saved) or 'none'}. Leave SIGINT and SIGTERM to the core"
            )
        resumed = run(attrs.evolve(tiny, steps=3, sections=RESUME)).result.run.step
        if resumed != 3:
            raise LawBroken(f"expected the run to resume at step 2 and end at step 3; it ended at step {resumed}")


@law("trainers")
def state_dict_is_plain(subject: Subject) -> None:
    """A checkpoint can store `state_dict()`, and `load_state_dict` of a new trainer restores it completely."""
    with TemporaryDirectory() as root:
        state = run(Tiny.of(subject, root, name="one")).watch.trainer.state_dict()
        file = Path(root) / "state.safetensors"
        try:
            save_state(file, state)
        except CheckpointError as error:
            raise LawBroken(f"expected a state_dict() that a checkpoint can store; {error}") from error
        loaded = load_state(file)
        if found := difference(state, loaded, "state_dict()"):
            raise LawBroken(f"expected state_dict() to survive saving and loading; {found}. Use plain values in it")
        fresh = run(Tiny.of(subject, root, name="other", steps=0)).watch.trainer
        fresh.load_state_dict(load_state(file))
        if found := difference(loaded, fresh.state_dict(), "state_dict()"):
            raise LawBroken(f"expected load_state_dict to restore everything in state_dict(); {found}")


@law("trainers")
def events_come_in_order(subject: Subject) -> None:
    """Observers are called once for the run's start and end, and for each step, then its evaluation and checkpoint.

    A trainer that samples and scores outputs calls `on_rollout` before the step that learns from them; one that trains
    a model of tokens passes trajectories.
    """
    sections = {"eval": {"every": 1, "at_start": True}, "checkpoint": {"every": 1}}
    with TemporaryDirectory() as root:
        ran = run(Tiny.of(subject, root, sections=sections).evaluated())
    calls = [hook for hook, _ in ran.watch.calls]
    alone = [hook for hook in calls if hook != "on_rollout"]
    expected = ["on_run_start", "on_evaluate", *["on_step", "on_evaluate", "on_checkpoint"] * 3, "on_run_end"]
    if alone != expected:
        raise LawBroken(
            f"expected the calls {', '.join(expected)}; observed {', '.join(alone)}. The core calls all hooks but "
            "on_rollout: call no other method of run.observers"
        )
    if "reward_fn" not in subject.it.target().needs:
        return
    if "on_rollout" not in calls[: calls.index("on_step")]:
        raise LawBroken(
            "expected on_rollout before the first on_step; it was called "
            f"{'later' if 'on_rollout' in calls else 'never'}. Call run.observers.on_rollout(run, batch) when a batch "
            "is sampled and scored"
        )
    for batch in ran.watch.arguments_of("on_rollout") if reads_tokens(subject) else ():
        if not isinstance(batch, Trajectories) or not bool(batch.action_mask.any()):
            raise LawBroken(
                f"expected on_rollout to receive Trajectories with action tokens; it received {batch!r:.60}"
            )


def _trained(ran: FinishedRun) -> list[tuple[str, Tensor]]:
    return list(ran.result.policy.module.named_parameters())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
