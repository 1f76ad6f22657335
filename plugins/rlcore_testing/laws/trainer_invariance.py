"""Laws of trainers about settings that must not change the result, and the law that training learns."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import attrs
import torch

from rlcore.protocols import TrainerTraits
from rlcore.types import Sample, Trajectories
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.rig.compare_runs import check_close, check_equal
from rlcore_testing.rig.isolate import GENERATORS, at_another_time, undisturbed
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
    """Two runs with the same seed are bit-identical, whatever the global random state and the date before each.

    A run writes no file into the working folder, and leaves torch's default dtype, its grad mode and the root logger as
    they are.
    """
    with TemporaryDirectory() as root:
        one, other = (Tiny.of(subject, root, name=name, model="gpt2") for name in ("one", "other"))
        with undisturbed("a run", but=GENERATORS):
            run(one)
        torch.manual_seed(4711)
        with at_another_time():
            run(other)
        check_equal(
            one, other, "Look for a generator that run.config.run.seed does not seed, for the clock, which is another "
            "year's in the second run, and for module state left over from the first",
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
        lowers = TrainerTraits(target).lowers
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
