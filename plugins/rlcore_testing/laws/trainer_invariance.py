"""Laws of trainers about settings that must not change the result, and the law that training learns.

Also in this file: laws that compare a trainer with its loss in plain torch, which its author states
(`rlcore_testing.Oracle`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.config import merge
from rlcore.settings import OptimizerConfig
from rlcore.types import Sample, Trajectories
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.recorded import Recorded
from rlcore_testing.rig.compare_runs import check_close, check_equal
from rlcore_testing.rig.gradient_noise import double_precision
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.rig.recorder import RecordingWatch, record
from rlcore_testing.rig.runs import (
    INPUTS,
    FinishedRun,
    Tiny,
    eager_options,
    inputs_of,
    noisy,
    reads_tokens,
    run,
    run_on_two_ranks,
    steady_options,
)
from rlcore_testing.small import toy_reward

FEW = 2
"""Steps of runs that are compared with a tolerance: rounding differences grow with every step."""
ODD = 7
"""Rows of data that two processes cannot divide evenly, so that one receives filler rows."""
FEW_TOKENS = 24
"""Value of `micro_batch_tokens` at which one or two of the kit's longer sequences fill a micro-batch."""
LEARNING_STEPS = 25
RISE = 0.2
"""Required increase of the mean reward of 256 outputs."""
FALL = 0.1
"""Required relative decrease of the demonstrations' loss."""


def _takes_micro_batches(subject: Subject) -> bool:
    """Return whether it has an option `micro_batch_size`."""
    return hasattr(subject.config(), "micro_batch_size")


def _learns_from_what_the_kit_has(subject: Subject) -> bool:
    """Return whether it needs `reward_fn` or `samples`, and trains a model of tokens."""
    return bool({"reward_fn", "samples"} & set(subject.it.target().needs)) and reads_tokens(subject)


@law("trainers")
def same_seed_same_numbers(subject: Subject) -> None:
    """Two runs with the same seed are bit-identical, whatever the global random state before each."""
    with TemporaryDirectory() as root:
        one, other = (Tiny.of(subject, root, name=name, model="gpt2") for name in ("one", "other"))
        run(one)
        torch.manual_seed(4711)
        run(other)
        check_equal(
            one, other, "Look for a generator that run.config.run.seed does not seed, and for module state left over "
            "from the previous run",
        )  # fmt: skip


@law("trainers", when=reads_tokens)
def padding_changes_nothing(subject: Subject) -> None:
    """The padding token, the amount of padding and its side do not change metrics and weights.

    Nor does the number of filler rows in groups that `rlcore.training.stack_groups` makes.
    """
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady_options(subject), steps=FEW, rollouts="scored")
        eos = attrs.evolve(one, name="eos", pad_is_eos=True)
        more = attrs.evolve(one, name="more", rollouts="padded")
        for tiny in (noisy(one), eos, more):
            run(tiny)
        check_close(
            one, eos, "The tokenizer's padding token is EOS in this run: padding is where `mask` is False, and actions "
            "are where `action_mask` is True; never compare tokens with pad_token_id or eos_token_id",
        )  # fmt: skip
        check_close(
            one, more, "The batches of this run have more padding, on both sides and with random tokens in it, and "
            "groups that `stack_groups` makes have another filler row: apply `mask` or `action_mask` before summing, "
            "averaging or indexing by column, and leave rows without a chosen token out of comparisons",
        )  # fmt: skip


@law("trainers", when=_takes_micro_batches)
def micro_batches_change_nothing(subject: Subject) -> None:
    """`micro_batch_size`, and `micro_batch_tokens` if the trainer has it, do not change metrics and weights."""
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady_options(subject), steps=FEW, rollouts="scripted")
        run(noisy(one))
        ways = [("micro_batch_size", 1), ("micro_batch_size", 3)]
        if hasattr(subject.config(), "micro_batch_tokens"):
            ways.append(("micro_batch_tokens", FEW_TOKENS))
        for option, bound in ways:
            other = attrs.evolve(one, name=f"{option}-{bound}", options={**one.options, option: bound})
            run(other)
            check_close(
                one, other, f"This run is with {option} = {bound}. Divide each micro-batch's sum by the number of "
                "action tokens of the whole batch; a mean of means overweights short micro-batches. Micro-batches are "
                "sorted by length: compute terms that compare sequences before the split",
            )  # fmt: skip


@law("trainers")
def two_processes_equal_one(subject: Subject) -> None:
    """Two processes and one process learn the same from the same rollouts or demonstrations."""
    with TemporaryDirectory() as root:
        one = Tiny.of(
            subject, root, name="one", options=steady_options(subject), steps=FEW, rollouts="scripted", rows=ODD
        )
        run(noisy(one))
        two = attrs.evolve(one, name="two")
        run_on_two_ranks(two, "training in two processes")
        check_close(
            one, two, f"This run is with two processes and {ODD} rows of data. Pass the prompts of the whole "
            "round to run.rollout, divide by counts over all rows of the round, which leave out rows without a chosen "
            "token, and let run.updater sum the gradients",
        )  # fmt: skip


@law("trainers", when=reads_tokens)
def divided_weights_equal_whole_ones(subject: Subject) -> None:
    """Two processes with `run.shard=fsdp` and one process learn the same."""
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady_options(subject), steps=FEW, rollouts="scripted")
        run(noisy(one))
        two = attrs.evolve(one, name="two", sections={"run": {"shard": "fsdp"}})
        try:
            run_on_two_ranks(two, "training with divided weights")
        except LawBroken as error:
            if "run.shard = 'fsdp':" in str(error):
                raise LawBroken(
                    f"{error}\nExpected the model and the optimizer to be divided. If the reason above is inherent in "
                    "this trainer, name the law and the reason in `expected_failures`"
                ) from error
            raise
        check_close(
            one, two, "This run is with run.shard=fsdp on two processes. Score with policy.score, step with "
            "run.updater, and read weights from policy.weights(): parameters of policy.module are empty between steps",
        )  # fmt: skip


@law("trainers")
def evaluation_changes_nothing(subject: Subject) -> None:
    """A run with an evaluation before the first step and after every step equals a run without evaluations."""
    with TemporaryDirectory() as root:
        never = Tiny.of(subject, root, name="never", model="gpt2").evaluated()
        often = attrs.evolve(never, name="often", sections={"eval": {"every": 1, "at_start": True}})
        run(never)
        run(often)
        check_equal(
            never, often, "An evaluation that the trainer adds (run.add_evaluation) must not leave the module in "
            "another mode, consume training data or random numbers, or keep gradients",
        )  # fmt: skip


@law("trainers")
def checkpoints_change_nothing(subject: Subject) -> None:
    """A run with a checkpoint after every step equals a run without checkpoints."""
    with TemporaryDirectory() as root:
        never = Tiny.of(subject, root, name="never", model="gpt2")
        often = attrs.evolve(never, name="often", sections={"checkpoint": {"every": 1}})
        run(never)
        run(often)
        check_equal(never, often, "state_dict() and policy() must not change the trainer's state")


@law("trainers", when=_learns_from_what_the_kit_has)
def it_learns(subject: Subject) -> None:
    """The mean reward of sampled outputs rises in a few steps; without a reward, the demonstrations' loss falls.

    A trainer whose loss does not make samples likelier, for example one that learns from preferences, names the metric
    that decreases instead in its attribute `lowers`. The learning rate is 0.01 unless the options set it.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, options=eager_options(subject), steps=LEARNING_STEPS)
        target = subject.it.target()
        lowers = getattr(target, "lowers", None)
        if "reward_fn" in target.needs:
            ran = run(
                attrs.evolve(tiny, sections={"eval": {"at_start": True, "at_end": True, "samples": 32}}).evaluated()
            )
            first, *_, last = (metrics["eval/reward/mean"] for metrics in ran.watch.arguments_of("on_evaluate"))
            what, enough = "mean reward", last >= first + RISE
        elif lowers is not None:
            first, last = _first_and_last(run(tiny), lowers)
            what, enough = lowers, first - last >= FALL * abs(first)
        else:
            first, last = (_loss(run(each)) for each in (attrs.evolve(tiny, name="start", steps=0), tiny))
            what, enough = "mean loss of the demonstrations", last <= first * (1 - FALL)
    if not enough:
        reason = _misordered(ran) if "reward_fn" in target.needs else ""
        raise LawBroken(
            f"expected the {what} to get clearly better in {LEARNING_STEPS} steps; it went from {first:.3f} to "
            f"{last:.3f}. "
            + (
                reason
                or "Check the sign of the loss, and that each score or label reaches the tokens "
                "of its own sequence; if the learning rate is too small, pass `options` that raise it"
            )
        )


def _misordered(ran: FinishedRun) -> str:
    """Return what is wrong with the scores of rollouts, if they are those of other sequences of the same batch."""
    is_ours = inputs_of(ran.tiny)["reward_fn"] == INPUTS["reward_fn"]
    for batch in ran.watch.arguments_of("on_rollout") if is_ours else ():
        if "scores" not in batch:
            continue
        texts = ran.result.run.learner.tokenizer.batch_decode(batch.action_tokens, skip_special_tokens=True)
        own, seen = torch.tensor(toy_reward(texts)), batch["scores"].float().cpu()
        if own.sort().values.allclose(seen.sort().values, atol=1e-4) and not own.allclose(seen, atol=1e-4):
            row = int((own - seen).abs().argmax())
            return (
                f"The column `scores` of a rollout has the sequences' scores in another order: {texts[row]!r}, row "
                f"{row}, has the score {seen[row]:.3f}, its own is {own[row]:.3f}"
            )
    return ""


def _first_and_last(ran: FinishedRun, metric: str) -> tuple[float, float]:
    """Return the mean of a metric over the first and over the last fifth of the steps."""
    values = [row[metric] for row in ran.watch.arguments_of("on_step") if metric in row]
    if not values:
        raise LawBroken(f"lowers = {metric!r}: no step yields a metric with that name")
    few = max(1, len(values) // 5)
    return sum(values[:few]) / few, sum(values[-few:]) / few


@torch.no_grad()
def _loss(ran: FinishedRun) -> float:
    samples = ran.result.run.samples
    if not all(isinstance(sample, Sample) for sample in samples):
        raise LawBroken(
            "the rows of its pipeline are no demonstrations, whose loss the kit could compute; name the metric that "
            "decreases during training in the attribute `lowers`, such as `lowers = 'loss/total'`"
        )
    batch = Trajectories.stack([sample.tokens for sample in samples], [sample.action_mask for sample in samples])
    outputs = ran.result.policy.score(batch)
    return -float(outputs.logprobs.sum() / batch.num_actions.sum())


STEPS = 2
RATE = 0.01
TEMPERATURE = 0.7
TOLERANCE = 1e-10
"""Largest difference of a weight, and of a metric relative to its size (at least 1), in float64."""
SAMPLES = (
    ["ab", "cde"], ["who? ", "me!", " why", "?"], ["q", "!"], ["f", "aa", "go", " on and on"], ["long ", "ago it"],
    ["z", "a b", ".", "n"], ["m", "nop"],
)  # fmt: skip
"""Demonstrations with one and with two outputs."""
REWARDS = (1.0, -0.5, 0.25, 2.0, 0.5, -1.0, 1.5)
WAYS: tuple[tuple[Mapping[str, int], str], ...] = (
    ({}, "scripted"), ({"micro_batch_size": 1}, "padded"), ({"micro_batch_size": 3}, "scripted"),
    ({"micro_batch_tokens": 24}, "padded"),
)  # fmt: skip
"""Options of micro-batches, and the form of the rollouts (`Tiny.rollouts`)."""


@attrs.frozen
class _Expected:
    """What an oracle computes: weights after the last step by the policy's names, and metrics of each step."""

    weights: Mapping[str, Tensor]
    metrics: list[dict[str, float]]


def _has_an_oracle(subject: Subject) -> bool:
    """Return whether its author states its loss in plain torch (`oracles`)."""
    return subject.it.name in subject.oracles


@law("trainers", when=_has_an_oracle)
def it_equals_its_oracle(subject: Subject) -> None:
    """Weights and stated metrics equal the oracle's in float64, for any micro-batches and padding.

    The runs have two steps of plain gradient descent, at a sampling temperature of 0.7.
    """
    with TemporaryDirectory() as root:
        tiny, before, expected = _described(subject, root), None, None
        for number, (options, rollouts) in enumerate(WAYS):
            if all(hasattr(subject.config(), option) for option in options):
                other = {**tiny.options, **options}
                recorder = record(noisy(attrs.evolve(tiny, name=f"way-{number}", options=other, rollouts=rollouts)))
                inputs = _inputs(recorder.recorded)
                if expected is None or inputs != before:
                    before, expected = inputs, _expected(subject, recorder)
                what = " and ".join(f"with {option} = {bound}" for option, bound in options.items())
                padding = ", with padding on both sides" if rollouts == "padded" else ""
                _compare(expected, recorder.weights, recorder.metrics, what + padding or "of whole batches")


@law("trainers", when=_has_an_oracle)
def two_processes_equal_the_oracle(subject: Subject) -> None:
    """Weights and stated metrics of a run in two processes equal the oracle's in float64."""
    with TemporaryDirectory() as root:
        tiny = _described(subject, root)
        expected = _expected(subject, record(tiny))
        two = {"description": attrs.asdict(noisy(attrs.evolve(tiny, name="two")))}
        found = call_on_two_ranks("rlcore_testing.rig.recorder:outcome", two, what="training in two processes")
        weights = {name: torch.tensor(weight, dtype=torch.float64) for name, weight in found["weights"].items()}
        _compare(expected, weights, found["metrics"], "in two processes")


def _described(subject: Subject, root: str) -> Tiny:
    if not isinstance(getattr(subject.config(), "optimizer", None), OptimizerConfig):
        raise LawBroken(
            "expected a trainer with an oracle to have the option `optimizer` of the type `OptimizerConfig`, as "
            "rlcore.settings.BatchOptions has: the kit sets plain gradient descent, which it repeats with the oracle"
        )
    kept = {name: value for name, value in subject.options.items() if name != "optimizer"}
    descent = {"optimizer": {"name": "sgd", "lr": RATE, "max_grad_norm": 0.0}}
    return Tiny.of(
        subject, root, options=merge(kept, descent), steps=STEPS, rollouts="scripted",
        given={"samples": [list(row) for row in SAMPLES], "rewards": list(REWARDS)},
        sections={"gen": {"temperature": TEMPERATURE}},
    )  # fmt: skip


def _inputs(recorded: Recorded) -> tuple[Any, ...]:
    """Return what the result of an oracle follows from, apart from the weights, which are equal in all runs."""
    return recorded.samples, recorded.rounds, recorded.steps, recorded.ends


def _expected(subject: Subject, recorder: RecordingWatch) -> _Expected:
    """Train the plain model with the oracle's losses."""
    recorded = recorder.recorded
    metrics: list[dict[str, float]] = [{} for _ in recorded.ends]
    num_made, due = 0, len(recorded.steps)
    with double_precision(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad")
        trained = [each for each in (*recorded.model.parameters(), *recorded.heads.values()) if each.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=RATE)
        for loss, stated in subject.oracles[subject.it.name](recorded):
            num_made += 1
            if num_made > due:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step = next(step for step, end in enumerate(recorded.ends) if num_made <= end)
            metrics[step] |= {name: float(value) for name, value in stated.items()}
    if num_made != due:
        raise LawBroken(
            f"expected the oracle to yield the losses of the {due} optimizer steps that the trainer made; it yields "
            f"{'more' if num_made > due else num_made}. `ends` has their number by the end of each step of the run"
        )
    if not any(metrics):
        raise LawBroken('expected the oracle to state a metric that is logged, as in yield loss, {"loss/total": loss}')
    weights = {recorder.prefix + name: weight.detach() for name, weight in recorded.model.named_parameters()}
    return _Expected(weights | {name: weight.detach() for name, weight in recorded.heads.items()}, metrics)


def _compare(expected: _Expected, weights: Mapping[str, Tensor], metrics: list[dict[str, float]], how: str) -> None:
    for step, (stated, logged) in enumerate(zip(expected.metrics, metrics, strict=True), start=1):
        for name, value in stated.items():
            if name not in logged:
                raise LawBroken(f"expected step {step} to log {name}, which the oracle states; logged: {[*logged]}")
            if not abs(logged[name] - value) <= TOLERANCE * max(1.0, abs(value)):
                raise LawBroken(
                    f"expected {name} of step {step}, {how}, to be {value:.12g} as the oracle computes it; the trainer "
                    f"logs {logged[name]:.12g}"
                )
    for name, weight in weights.items():
        off = float((weight - expected.weights[name]).abs().max())
        if not off <= TOLERANCE:
            raise LawBroken(
                f"expected the weights of the run, {how}, to be those that the oracle's losses give; {name} is off by "
                f"{off:.1e}, so the gradients of the losses differ"
            )
