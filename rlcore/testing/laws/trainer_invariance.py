"""The laws of trainers about what must make no difference, and about the one thing that must."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import attrs
import torch

from rlcore.testing.law import LawBroken, Subject, law
from rlcore.testing.rig.compare_runs import check_close, check_equal
from rlcore.testing.rig.runs import Ran, Tiny, eager, run, run_on_two_ranks, steady
from rlcore.types import Trajectories

FEW = 2
"""Steps after which runs are compared that differ by rounding, which grows with every step."""
FEW_TOKENS = 24
"""A bound on the tokens of a part that the kit's longer sequences reach one or two at a time."""
LEARNING_STEPS = 25
RISE = 0.2
"""Of the mean reward of 256 outputs."""
FALL = 0.1
"""Of the loss of the demonstrations, as a share of it."""


def _takes_micro_batches(subject: Subject) -> bool:
    """Tell whether it has an option `micro_batch_size`."""
    return hasattr(subject.config(), "micro_batch_size")


def _learns_from_what_the_kit_has(subject: Subject) -> bool:
    """Tell whether it needs `reward_fn` or `samples`."""
    return bool({"reward_fn", "samples"} & set(subject.it.target().needs))


@law("trainers")
def same_seed_same_numbers(subject: Subject) -> None:
    """Two runs with one seed are the same to the last bit, whatever random numbers others drew between and before."""
    with TemporaryDirectory() as root:
        one, other = (Tiny.of(subject, root, name=name, model="gpt2") for name in ("one", "other"))
        run(one)
        torch.manual_seed(4711)
        run(other)
        check_equal(
            one, other, "Is there a generator that run.config.run.seed does not seed, or something left over from the "
            "run before?",
        )  # fmt: skip


@law("trainers")
def padding_changes_nothing(subject: Subject) -> None:
    """Neither which token stands for padding nor how much of it there is, on which side, changes what is learned."""
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady(subject), steps=FEW, rollouts="scored")
        eos = attrs.evolve(one, name="eos", pad_is_eos=True)
        more = attrs.evolve(one, name="more", rollouts="padded")
        for tiny in (one, eos, more):
            run(tiny)
        check_close(
            one, eos, "This was with a tokenizer whose padding token is EOS: padding is where `mask` is False, and "
            "what to learn from where `action_mask` is True; never compare tokens with pad_token_id or eos_token_id",
        )  # fmt: skip
        check_close(
            one, more, "This was with more padding, on both sides and with garbage in it: is something summed, "
            "averaged or indexed by column without `mask` or `action_mask`?",
        )  # fmt: skip


@law("trainers", when=_takes_micro_batches)
def micro_batches_change_nothing(subject: Subject) -> None:
    """`micro_batch_size`, and `micro_batch_tokens` where there is one, change memory and never what is learned."""
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady(subject), steps=FEW, rollouts="scripted")
        run(one)
        ways = [("micro_batch_size", 1), ("micro_batch_size", 3)]
        if hasattr(subject.config(), "micro_batch_tokens"):
            ways.append(("micro_batch_tokens", FEW_TOKENS))
        for option, bound in ways:
            other = attrs.evolve(one, name=f"{option}-{bound}", options={**one.options, option: bound})
            run(other)
            check_close(
                one, other, f"This was with {option} = {bound}. Divide each part's sum by the number of chosen tokens "
                "of the whole batch; a mean of means weighs short parts too heavily. Parts are sorted by length: what "
                "compares sequences with each other must be done before",
            )  # fmt: skip


@law("trainers")
def two_processes_equal_one(subject: Subject) -> None:
    """Two processes learn from the same rollouts or demonstrations what one learns."""
    with TemporaryDirectory() as root:
        one = Tiny.of(subject, root, name="one", options=steady(subject), steps=FEW, rollouts="scripted")
        run(one)
        two = attrs.evolve(one, name="two")
        run_on_two_ranks(two, "training in two processes")
        check_close(
            one, two, "This was with two processes. Share the prompts out (run.ranks.share), put the round together "
            "(run.ranks.gather_batch), divide by counts over all ranks, and have run.updater add the gradients up",
        )  # fmt: skip


@law("trainers")
def evaluation_changes_nothing(subject: Subject) -> None:
    """A run that is evaluated after every step, and before the first, learns what a run without evaluations learns."""
    with TemporaryDirectory() as root:
        never = Tiny.of(subject, root, name="never", model="gpt2").evaluated()
        often = attrs.evolve(never, name="often", sections={"eval": {"every": 1, "at_start": True}})
        run(never)
        run(often)
        check_equal(
            never, often, "Does an evaluation of the trainer's own (run.add_evaluation) leave the module in another "
            "mode, take from what training goes on with, or keep gradients?",
        )  # fmt: skip


@law("trainers")
def checkpoints_change_nothing(subject: Subject) -> None:
    """A run with a checkpoint after every step learns what a run without any learns."""
    with TemporaryDirectory() as root:
        never = Tiny.of(subject, root, name="never", model="gpt2")
        often = attrs.evolve(never, name="often", sections={"checkpoint": {"every": 1}})
        run(never)
        run(often)
        check_equal(never, often, "state_dict() and policy() must only look: do they take, clear or move something?")


@law("trainers", when=_learns_from_what_the_kit_has)
def it_learns(subject: Subject) -> None:
    """The reward of what is sampled rises clearly in a few steps; without a reward, the demonstrations' loss falls.

    A trainer that learns from samples and makes them no likelier, as one of preferences, names the metric that falls
    instead in its attribute `lowers`. Where the options hold an `optimizer` and do not set its learning rate, it is
    0.01.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, options=eager(subject), steps=LEARNING_STEPS)
        target = subject.it.target()
        lowers = getattr(target, "lowers", None)
        if "reward_fn" in target.needs:
            ran = run(
                attrs.evolve(tiny, sections={"eval": {"at_start": True, "at_end": True, "samples": 32}}).evaluated()
            )
            first, *_, last = (told["eval/reward/mean"] for told in ran.watch.told("on_evaluate"))
            what, enough = "mean reward", last >= first + RISE
        elif lowers is not None:
            first, last = _course(run(tiny), lowers)
            what, enough = lowers, first - last >= FALL * abs(first)
        else:
            first, last = (_loss(run(each)) for each in (attrs.evolve(tiny, name="start", steps=0), tiny))
            what, enough = "mean loss of the demonstrations", last <= first * (1 - FALL)
    if not enough:
        raise LawBroken(
            f"expected the {what} to get clearly better in {LEARNING_STEPS} steps; it was {first:.3f} and is "
            f"{last:.3f}. Is the sign of the loss right? If all it needs is a larger step, give options that take it"
        )


def _course(ran: Ran, metric: str) -> tuple[float, float]:
    """Return the mean of a metric over the first and over the last fifth of the steps."""
    values = [row[metric] for row in ran.watch.told("on_step") if metric in row]
    if not values:
        raise LawBroken(f"lowers = {metric!r}: no step yields a metric of that name")
    few = max(1, len(values) // 5)
    return sum(values[:few]) / few, sum(values[-few:]) / few


@torch.no_grad()
def _loss(ran: Ran) -> float:
    samples = ran.result.run.samples
    batch = Trajectories.stack([sample.tokens for sample in samples], [sample.action_mask for sample in samples])
    said = ran.result.policy.score(batch)
    return -float(said.logprobs.sum() / batch.num_actions.sum())
