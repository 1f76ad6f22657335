"""Laws of trainers about the log-probs that they learn from: of which tokens, and at which temperature."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import attrs

from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.rig.compare_runs import check_close, difference, weights
from rlcore_testing.rig.runs import Tiny, noisy, run, steady_options, trains_the_kits_decoder

HALVED = "lm_head.weight"
"""The weight that differs between the two models of the law on temperature; neither trains it."""


def _learns_from_samples(subject: Subject) -> bool:
    """Return whether it needs `reward_fn`, and trains a decoder-only model."""
    return "reward_fn" in subject.it.target().needs and trains_the_kits_decoder(subject)


@law("trainers", when=_learns_from_samples)
def the_temperature_divides_the_logits(subject: Subject) -> None:
    """A run at temperature 2 learns the same as one at temperature 1 of a model that has half the logits."""
    with TemporaryDirectory() as root:
        options = steady_options(subject)
        cold = Tiny.of(subject, root, name="cold", options=options, steps=2, rollouts="scored", model="half_logits")
        hot = attrs.evolve(cold, name="hot", model="fixed_head", sections={"gen": {"temperature": 2.0}})
        for tiny in (noisy(cold), hot):
            run(attrs.evolve(tiny, sections=tiny.sections or {"gen": {"temperature": 1.0}}))
        check_close(
            cold, hot, "The other run is at gen.temperature = 2, and the logits of this one are halved. Call "
            "policy.score and policy.reference_score with temperature=run.temperature", but=HALVED,
        )  # fmt: skip


@law("trainers", when=_learns_from_samples)
def the_text_of_an_environment_is_not_learned(subject: Subject) -> None:
    """What an environment answers between two turns is read, but not learned: only action tokens have a loss.

    In two runs the environment answers with other tokens, which the model reads as the same.
    """
    with TemporaryDirectory() as root:
        options = steady_options(subject)
        one = Tiny.of(subject, root, name="one", options=options, steps=2, rollouts="answered", model="two_alike")
        other = attrs.evolve(one, name="other", rollouts="answered_otherwise")
        for tiny in (noisy(one), other):
            run(tiny)
        check_close(
            one, other, "The rollouts of this run have another token of an environment, which is no action, between "
            "the first action token and the others. Sum losses where `action_mask` is True, not from the first action "
            "token to the last", but="embed_tokens.weight",
        )  # fmt: skip


@law("trainers", when=_learns_from_samples)
def every_token_of_the_reference_counts(subject: Subject) -> None:
    """The reference's log-prob of the first token of an output, and that of the last, change what is learned.

    This holds for a trainer that calls `policy.reference_score` without `logits`.
    """
    with TemporaryDirectory() as root:
        options = steady_options(subject)
        plain = Tiny.of(subject, root, name="plain", options=options, steps=1, rollouts="scored")
        if not run(plain).watch.uses_reference:
            return
        for which in ("first", "last"):
            other = attrs.evolve(plain, name=which, nudged=which)
            run(other)
            if not difference(weights(plain.dir), weights(other.dir), "weights"):
                raise LawBroken(
                    f"expected another log-prob of the reference, at the {which} token of each output, to change the "
                    "weights after a step; they are bit-identical. Column t of log-probs is about token t: do not "
                    "shift them against each other or against `action_mask`"
                )
