"""What DPO minimises for pairs: log-probs of both answers become log-ratios, those a loss and metrics of each pair.

Also in this file: what KTO minimises: answers with a verdict, each compared with the mean log-ratio of mismatched
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import Round, Run, by_block, micro_batches, stack_samples
from rlcore.types import Sample, Trajectories
from rlcore_dpo import loss as losses
from rlcore_dpo.config import SMOOTHED, WITHOUT_REFERENCE, DPOConfig, beta_of, smoothing_of, weights_of
from rlcore_dpo.loss import kto_loss, mismatch
from rlcore_dpo.reference import Reference, summed
from rlcore_transformers.data.tokens import shorter
from rlcore_transformers.preferences.preferences import LabelledSample, Pair, flaw_of, stack_pairs, usable_pairs

ROUNDING = 1e-6
"""Relative error of the log-prob of an answer: at step 0 the policy equals its reference up to this."""
MEAN = ("sigmoid_norm", "simpo", "orpo")
"""Losses of means over the tokens of an answer; `ipo` is another one by default."""
SIGMOIDS = ("cpo", "sigmoid_norm")
"""Losses that are `sigmoid` of other scores."""


@attrs.frozen
class Term:
    """A loss of pairs in a sum.

    Attributes:
        name: of the loss.
        weight: in the sum.
        beta: of the loss.
        function: returns the loss of each pair, float[P], of two float[P].
        takes_means: whether these are means over the tokens of an answer, instead of sums.
        compares: whether they are log-ratios to the reference, instead of log-probs.
    """

    name: str
    weight: float
    beta: float
    function: Callable[..., Tensor]
    takes_means: bool
    compares: bool


def terms_of(config: DPOConfig, num_tokens: float | None = None) -> list[Term]:
    """Return the losses that the options name, with their options, for answers of a mean number of tokens."""
    return [_term(config, name, weight, num_tokens) for name, weight in weights_of(config).items()]


def _term(config: DPOConfig, name: str, weight: float, num_tokens: float | None) -> Term:
    function: Callable[..., Tensor] = getattr(losses, f"{'sigmoid' if name in SIGMOIDS else name}_loss")
    beta, options = beta_of(config, name, num_tokens), {}
    if name in SMOOTHED:
        options["label_smoothing"] = smoothing_of(config, name)
    if name == "discopop":
        options["tau"] = config.tau
    if name == "simpo":
        options["gamma"] = config.gamma
    return Term(
        name, weight, beta, partial(function, beta=beta, **options),
        takes_means=name in MEAN or (name == "ipo" and config.average == "mean"),
        compares=name not in WITHOUT_REFERENCE and not config.reference_free,
    )  # fmt: skip


def read_pairs(rows: Sequence[Any], what: str) -> list[Pair]:
    """Return the pairs that can be learned from.

    Raises:
        DataError: the rows are no pairs, or none can be learned from.
    """
    for row in rows:
        _check_pair(row, what)
    return usable_pairs(rows, what)


def mean_tokens(pairs: Sequence[Pair]) -> float:
    """Return the mean number of tokens of an answer."""
    return sum(sum(each.action_mask) for pair in pairs for each in (pair.chosen, pair.rejected)) / (2 * len(pairs))


def is_usable_pair(row: Any) -> bool:
    """Return whether a streamed row can be learned from.

    Raises:
        DataError: the row is no pair.
    """
    _check_pair(row, "samples")
    return flaw_of(row) is None


def _check_pair(row: object, what: str) -> None:
    if not isinstance(row, Pair):
        raise DataError(
            f"{what}: the pipeline returned {type(row).__name__} objects; this loss learns from pairs: leave "
            "data.sample_pipeline out, or set trainer.loss=kto to learn from labelled answers"
        )


class PairReference(Protocol):
    """What the losses of pairs need of a reference."""

    is_used: bool
    """Whether the losses compare with it."""

    def logprobs(self, part: Trajectories) -> Tensor:
        """Return the reference's log-prob of each answer: float[B].

        Args:
            part: B answers after their prompts.
        """
        ...


class PairObjective:
    """The losses of pairs.

    Args:
        config: the trainer's options, resolved.
        policy: the policy.
        reference: the reference.
        temperature: divisor of the policy's logits; 1 for answers that no policy of this run has sampled.
        num_tokens: mean number of tokens of an answer, from which the default of beta follows; None if it is unknown.
    """

    group = 2
    stack = staticmethod(stack_pairs)

    def __init__(
        self, config: DPOConfig, policy: Policy, reference: PairReference, *, temperature: float = 1.0,
        num_tokens: float | None = None,
    ) -> None:  # fmt: skip
        self.config, self.policy, self.reference, self.temperature = config, policy, reference, temperature
        self.terms = terms_of(config, num_tokens)

    def loss_of(self, batch: Trajectories | Round) -> Callable[[Trajectories], tuple[Tensor, dict[str, Tensor]]]:
        """Return the loss function of the parts of a batch, the pairs of an optimizer step on all ranks."""
        # The updater divides by the number of pairs; the likelihood is a mean over tokens.
        imitated = batch.lengths - 1 if self.config.nll == "full" else batch.num_actions
        tokens = imitated[::2].sum()
        return partial(self.loss, sft_weight=float(self.config.sft_coef or 0) * (len(batch) // 2) / tokens.clamp(min=1))

    def loss(self, part: Trajectories, *, sft_weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each pair, float[P], and its metrics.

        Args:
            part: 2 P rows, chosen and rejected answers in turn.
            sft_weight: factor of the negative log-likelihood of each chosen answer.
        """
        is_full = self.config.nll == "full" and bool(self.config.sft_coef)
        outputs = self.policy.score(with_prompts(part) if is_full else part, temperature=self.temperature)
        logprobs = outputs.logprobs
        sums = summed(logprobs, part.action_mask)
        ratios = sums - self.reference.logprobs(part) if self.reference.is_used else sums
        preference, metrics = self._preference(part, sums, ratios)
        total = preference
        if self.config.sft_coef:
            likelihood = (summed(logprobs, with_prompts(part).action_mask) if is_full else sums)[::2]
            total = preference - sft_weight * likelihood
            metrics |= {"loss/preference": preference, "loss/sft": total - preference}
        return total, {
            "loss/total": total, **metrics, **self._rewards(part, sums, ratios),
            "logps/chosen": sums[::2], "logps/rejected": sums[1::2],
        }  # fmt: skip

    def _preference(self, part: Trajectories, sums: Tensor, ratios: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the losses, float[P], and where there are several, each with its weight."""
        found = {}
        for term in self.terms:
            scores = _scores(term, part, sums, ratios)
            found[f"loss/{term.name}"] = term.weight * term.function(scores[::2], scores[1::2])
        total = torch.stack(list(found.values())).sum(0)
        return total, found if len(found) > 1 else {}

    def _rewards(self, part: Trajectories, sums: Tensor, ratios: Tensor) -> dict[str, Tensor]:
        """Return the metrics of the answers, as the first loss compares them."""
        term = self.terms[0]
        scores = _scores(term, part, sums, ratios)
        chosen, rejected = scores[::2], scores[1::2]
        # Up to rounding, two scores are equal. Equal answers are no wins.
        sizes = sums.detach().abs() + 1
        rounding = ROUNDING * (sizes / part.num_actions.clamp(min=1) if term.takes_means else sizes)
        won = chosen - rejected > rounding[::2] + rounding[1::2]
        return {
            "rewards/chosen": term.beta * chosen, "rewards/rejected": term.beta * rejected,
            "rewards/accuracies": won.float(), "rewards/margins": term.beta * (chosen - rejected),
        }  # fmt: skip


def _scores(term: Term, part: Trajectories, sums: Tensor, ratios: Tensor) -> Tensor:
    """Return what a loss compares: float[2 P]."""
    scores = ratios if term.compares else sums
    return scores / part.num_actions.clamp(min=1) if term.takes_means else scores


def with_prompts(batch: Trajectories) -> Trajectories:
    """Return the same sequences with every token chosen but the first."""
    return attrs.evolve(batch, action_mask=batch.mask & (batch.mask.cumsum(1) > 1))


BALANCED = (1.0, 4 / 3)
"""Range of the ratio of weighted desirable to weighted undesirable answers that the paper recommends."""


def read_labelled(rows: Sequence[object], what: str, config: DPOConfig) -> list[LabelledSample]:
    """Return answers with a verdict; a pair gives two, the chosen one desirable. Empty answers are dropped.

    Warnings count these, and answers that are cut at the end.

    Raises:
        DataError: the rows are neither, or fewer than two are left.
    """
    found = []
    for row in rows:
        if isinstance(row, Pair):
            found += [LabelledSample(row.chosen, label=True), LabelledSample(row.rejected, label=False)]
        elif isinstance(row, LabelledSample):
            found.append(row)
        else:
            raise DataError(
                f"{what}: the pipeline returned {type(row).__name__} objects; loss 'kto' learns from labelled answers: "
                "leave data.sample_pipeline out"
            )
    kept = [row for row in found if any(row.sample.action_mask)]
    log = get_logger("dpo")
    if len(kept) < len(found):
        log.warning("empty answers are dropped", rows=what, kept=len(kept), empty_answer=len(found) - len(kept))
    if cut := sum(not row.sample.ended for row in kept):
        log.warning(
            "answers are longer than data.max_sample_tokens or the model's context; their ends are cut off",
            rows=what, cut=cut, kept=len(kept),
        )  # fmt: skip
    if len(kept) < 2:
        raise DataError(f"{what}: has {len(kept)} answers with text; loss 'kto' needs at least 2")
    good = sum(row.label for row in kept)
    weights = config.desirable_weight * good, config.undesirable_weight * (len(kept) - good)
    if not BALANCED[0] * weights[1] <= weights[0] <= BALANCED[1] * weights[1]:
        log.warning(
            "desirable and undesirable answers are out of balance: set trainer.desirable_weight or "
            "trainer.undesirable_weight, so that weighted desirable answers are 1 to 4/3 times the others",
            rows=what, desirable=good, undesirable=len(kept) - good,
        )  # fmt: skip
    return kept


def stack_labelled(rows: Sequence[LabelledSample]) -> Trajectories:
    """Pad answers into one batch, on the CPU, with the column `labels`: bool[B]."""
    batch = stack_samples([row.sample for row in rows])
    return batch.with_columns(labels=torch.tensor([row.label for row in rows]))


def rotated(batch: Trajectories, limit: int = 0) -> Trajectories:
    """Return each prompt with the answer to the next other prompt of the batch, on the CPU.

    In a batch whose prompts are all equal, it is the next answer. As the rows themselves, they are cut at the end to
    `limit` tokens; 0 leaves them whole.
    """
    prompts, answers, ends = [], batch.action_tokens, batch.ended.tolist()
    for row, chosen, real in zip(batch.tokens, batch.action_mask, batch.mask, strict=True):
        prompts.append(row[real & ~chosen].tolist())
    samples = []
    for i, prompt in enumerate(prompts):
        following = [(i + k) % len(prompts) for k in range(1, len(prompts))]
        j = next((k for k in following if prompts[k] != prompt), following[0])
        tokens = (*prompt, *answers[j])[: limit or None]
        mask = ((False,) * len(prompt) + (True,) * len(answers[j]))[: len(tokens)]
        is_whole = len(tokens) == len(prompt) + len(answers[j])
        samples.append(Sample(tokens, (False, *mask[1:]), ended=ends[j] and is_whole))
    return stack_samples(samples)


class KTOObjective:
    """The loss of answers with a verdict.

    Args:
        config: the trainer's options, resolved.
        policy: the policy.
        reference: the reference.
        run: the run.
    """

    group = 1
    stack = staticmethod(stack_labelled)

    def __init__(self, config: DPOConfig, policy: Policy, reference: Reference, run: Run) -> None:
        self.config, self.policy, self.reference, self.run = config, policy, reference, run

    def loss_of(self, batch: Trajectories) -> Callable[[Trajectories], tuple[Tensor, dict[str, Tensor]]]:
        """Return the loss function of the parts of a batch, the answers of an optimizer step on all ranks.

        Mismatched answers are those of the same batch, after shuffling. Their mean is over the whole batch, so that
        neither micro-batches nor ranks change it.
        """
        return partial(self.loss, kl=self.kl(batch))

    @torch.no_grad()
    def kl(self, batch: Trajectories) -> Tensor:
        """Return z: the mean log-ratio of mismatched answers over the whole batch, at least 0: float[]."""
        config, ranks = self.config, self.run.ranks
        limit = shorter(self.run.data.options.max_sample_tokens, self.policy.max_length)
        mismatched = rotated(batch, limit).to(ranks.device)
        total = torch.zeros((), dtype=torch.float64, device=ranks.device)
        with by_block(self.policy):
            for part, _ in micro_batches(mismatched, config.micro_batch_size, ranks, tokens=config.micro_batch_tokens):
                total += self._ratios(part).double().sum()
        return mismatch((ranks.sum(total) / len(batch)).float()[None])

    def loss(self, part: Trajectories, *, kl: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each answer, float[B], and its metrics."""
        config, labels = self.config, part["labels"]
        beta = beta_of(config, "kto")
        ratios = self._ratios(part)
        total = kto_loss(
            ratios, labels, kl, beta=beta, desirable=config.desirable_weight, undesirable=config.undesirable_weight
        )
        return total, {
            "loss/total": total, "rewards/mean": beta * ratios, "rewards/accuracies": ((ratios > kl) == labels).float(),
            "kl/mismatched": kl.expand_as(ratios), "data/desirable_fraction": labels.float(),
        }  # fmt: skip

    def _ratios(self, part: Trajectories) -> Tensor:
        return summed(self.policy.score(part).logprobs, part.action_mask) - self.reference.logprobs(part)
