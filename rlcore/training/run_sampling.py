"""How a run samples completions and scores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.errors import Diverged, RewardError
from rlcore.profiling import count_tokens, note_sampled, timed
from rlcore.protocols import Divisible, Sampler, SamplerTraits
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import ROW, Round
from rlcore.rewards.combine import Scored, Scorer
from rlcore.sampling import derive_seeds, draw_seeds, takes
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore.training.models import Models
from rlcore.training.progress import Progress
from rlcore.training.rollout import Rollouts, collect, overlaps
from rlcore.training.run_data import RunData
from rlcore.types import Episodes, Metrics, Prompt, Trajectories, tensor_on, to_device

T = TypeVar("T")
HAS_SCORE = "has_score"
"""Column of groups: bool[B], True for responses to which a reward function gave a number."""


@attrs.define(eq=False, kw_only=True, slots=False)
class Sampling:
    """What a run does with prompts: it samples continuations, scores them and logs some of them.

    Attributes:
        sampler: generates continuations.
    """

    _config: TrainConfig
    _dir: Path
    _ranks: Ranks
    _models: Models
    _data: RunData
    sampler: Sampler
    _progress: Progress

    @cached_property
    def generator(self) -> torch.Generator:
        """Return the random generator of the run, in the same state on all ranks; every checkpoint contains it.

        It draws the seeds of sampling (`row_seeds`). A trainer that draws from it does so on all ranks alike.
        """
        return torch.Generator().manual_seed(self._config.run.seed * 1009)

    @property
    def traits(self) -> SamplerTraits:
        """Return what the sampler states and offers beside its call."""
        return SamplerTraits(self.sampler)

    @property
    def temperature(self) -> float:
        """Return the temperature of the policy that samples and learns, for `policy.score(..., temperature=...)`."""
        return self._config.gen.policy_temperature

    def row_seeds(self, count: int, *, group: int = 1) -> list[int]:
        """Draw the seed of a round, and return the seeds of this rank's `count` rows of it.

        The seed of a row depends on its index in the round, and so not on the number of processes. `sample` calls this
        unless it receives seeds. All ranks call it equally often: a rank that has no prompts, and skips `sample`, calls
        it with a count of 0.

        Args:
            count: the number of rows.
            group: so many consecutive rows are dealt together, as `Ranks.share` does.
        """
        (seed,), whole = draw_seeds(1, self.generator), -(-count // group) * group
        return derive_seeds(seed, self._ranks.share(whole * self._ranks.world, group=group)[:count])

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Let the sampler have the weights that it asks for, before ranks sample, this one `prompts`; collective."""
        policy, renew = self._models.policy, self.traits.renew_weights
        if renew is not None:
            renew(policy, prompts)
        elif isinstance(policy, Divisible):
            policy.gather()

    @timed("generate")
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        group: int = 1,
        row_seeds: Sequence[int] | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Continue each prompt once with the current policy; the result lies on this process's device.

        Args:
            prompts: this rank's prompts, dealt by `Ranks.share`.
            sampling: the sampling options; by default those of `gen`.
            group: so many consecutive prompts were dealt together.
            row_seeds: a seed for each prompt; by default those of `row_seeds`, so that a row is sampled alike
                whatever the number of processes, if the sampler supports that. Ranks that pass seeds may call this
                differently often, after `prepare`.
            on_batch: called with finished trajectories (`rlcore.protocols.Sampler`).

        Raises:
            Diverged: the log-prob of a sampled token is not finite.
        """
        seeds = self.row_seeds(len(prompts), group=group) if row_seeds is None else row_seeds
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(int(seeds[0]) if len(seeds) else 0)}
        if self._takes_seeds:
            options["row_seeds"] = seeds
        if self.logit_mask is not None:
            options["logit_mask"] = self.logit_mask
        if on_batch is not None:
            options["on_batch"] = on_batch
        if row_seeds is None:
            self.prepare(prompts)
        with torch.no_grad():
            batch = self.sampler(self._models.policy, prompts, sampling or self._config.gen, **options)
        self._check_logprobs(batch)
        count_tokens(batch.action_mask)
        note_sampled(batch.action_mask)
        return batch

    def _check_logprobs(self, batch: Trajectories) -> None:
        """Raise Diverged if a sampled token has a log-prob that is not finite: it was sampled from no distribution."""
        for name in batch.columns.keys() & {"logprobs", "sampling_logprobs"}:
            chosen = batch[name][batch.action_mask]
            if not bool(chosen.isfinite().all()):
                first = float(chosen[~chosen.isfinite()][0])
                raise Diverged(
                    f"step {self._progress.step + 1}: a sampled token has {name} = {first}: the model's logits, or the "
                    "sampler's numbers, are not finite, and nothing is learned from these samples; resume from an "
                    "earlier checkpoint with a lower trainer.optimizer.lr, or look at the model and its precision"
                )

    def check_round(self) -> None:
        """Let the sampler check what all ranks have sampled since the last call; all ranks call together."""
        self.traits.check_round(self._ranks)

    @cached_property
    def logit_mask(self) -> Tensor | None:
        """Return `run.data.logit_mask` on the policy's device."""
        mask = self._data.logit_mask
        return None if mask is None else to_device(mask, self._models.policy.device)

    @cached_property
    def rollouts(self) -> Rollouts:
        """Return the log of sampled completions."""
        return Rollouts(self._config.run.rollouts, self._ranks, self._dir)

    def score(
        self,
        prompts: Sequence[Prompt],
        batch: Trajectories,
        *,
        stop_sequences: Sequence[str] | None = None,
        where: str = "",
    ) -> Scored:
        """Score sampled continuations with the reward functions, and log some in rollouts.jsonl (`run.rollouts`).

        Args:
            prompts: B prompts.
            batch: their continuations.
            stop_sequences: strings at which outputs are cut; by default those of `gen`.
            where: the purpose of the batch, for errors; by default the step in progress.

        Raises:
            RewardError: a reward function raised or returned an unusable value.
            DataError: a sequence has no chosen token.
        """
        scored = self._scorer(stop_sequences, where)(prompts, batch).by_source(prompts)
        self.rollouts.add(prompts, batch, scored)
        return scored

    def score_outputs(self, prompts: Sequence[Prompt], outputs: Mapping[str, object], *, where: str = "") -> Scored:
        """Score outputs that are no text with the reward functions.

        Args:
            prompts: B prompts.
            outputs: B outputs by the name of the argument that reward functions receive, such as `{"images": images}`;
                a first parameter of any other name receives the first of them.
            where: the purpose of the batch, for errors; by default the step in progress.

        Raises:
            RewardError: a reward function raised or returned an unusable value.
        """
        where = where or f"step {self._progress.step + 1}"
        if self._data.reward_fn is None:
            return Scored([""] * len(prompts), torch.zeros(len(prompts)), None, {})
        rewards = self._data.reward_fn.score(prompts, outputs, where=where)
        return Scored([""] * len(prompts), torch.tensor(rewards.totals, dtype=torch.float32), None, rewards.by_name)

    def dealt(self, prompts: Sequence[T], *, group: int = 1) -> list[T]:
        """Return this process's share of the prompts of a round, or of anything else, each `group` times."""
        return [prompts[row // group] for row in self._ranks.share(len(prompts) * group, group=group)]

    def rollout(self, prompts: Sequence[Prompt], *, group: int = 1, at_least: int = 1) -> Round:
        """Sample `group` responses to each prompt, and score them, while others are sampled if `run.overlap_rewards`.

        A response for which every reward function returned None has no score: it is left out, and counted in the metric
        `reward/unscored`. In groups it stays, so that all groups have one size.

        Args:
            prompts: those of the whole round, the same on all processes, each of which samples its share.
            group: so many consecutive rows of the round continue the same prompt.
            at_least: responses with a score that the trainer needs; 0 keeps those without a score.

        Returns:
            The responses, with the columns of the sampler, `prompt` (long[B], the index in `prompts`), `scores`
            (float32[B]) and, if reward functions return rewards of tokens, `dense` (float32[K, T]). Groups have the
            columns `has_score` (bool[B]) and, of each reward function, `reward/NAME` (float64[B]) and
            `has_reward/NAME` (bool[B]). `metrics` has those of scores and lengths, and the times.

        Raises:
            RewardError: fewer than `at_least` responses have a score, or a reward function failed.
        """
        own = self.dealt(prompts, group=group)
        if own:
            sample = partial(self.sample, group=group)
            batch, scored = collect(sample, self._scorer(), own, overlap=self._overlaps)
        else:  # it draws the seed of the round, and completes the weights, as the others do
            self.row_seeds(0)
            self.prepare(own)
            batch = Trajectories.stack([], []).to(self._ranks.device)
            scored = Scored.of_nothing(self._data.reward_fn, device=self._ranks.device)
        self.rollouts.add(own, batch, scored, group=group)
        batch = batch.plain if isinstance(batch, Episodes) else batch
        return self.form_round(batch, scored.by_source(own), group=group, at_least=at_least)

    def form_round(self, batch: Trajectories, scored: Scored, *, group: int = 1, at_least: int = 1) -> Round:
        """Return the round of responses that this process and the others have sampled and scored, as `rollout` does.

        Args:
            batch: the responses of this process, to its share of the prompts.
            scored: their scores.
            group: as of `rollout`.
            at_least: as of `rollout`.

        Raises:
            RewardError: fewer than `at_least` responses have a score.
        """
        self.check_round()
        ranks, device, columns = self._ranks, batch.tokens.device, {"scores": scored.scores}
        known = tensor_on(device, [score is not None for score in scored.totals], torch.bool)
        if group > 1:
            columns |= {HAS_SCORE: known, **scored.columns_by_name}
        if ranks.any(scored.dense is not None):
            last = ops.place_last(scored.scores, batch.action_mask)
            columns["dense"] = last if scored.dense is None else scored.dense
        rows = tensor_on(device, ranks.share(-(-len(batch) // group) * group * ranks.world, group=group))
        columns |= {"prompt": rows // group, **({ROW: rows} if ranks.world > 1 else {})}
        found = Round.of(ranks, batch.with_columns(**columns))
        known = found.all(known)
        num_known = int(known.sum())
        if num_known < at_least:
            raise RewardError(
                f"step {self._progress.step + 1}: {len(found) - num_known} of {len(found)} responses have no score, "
                f"and {self._config.trainer.get('name')} learns from at least {at_least}: the reward functions gave "
                "None for them, or their episodes failed; give some responses a number"
            )
        found = attrs.evolve(found, metrics=_metrics(found, known, scored))
        is_whole = group > 1 or not at_least or num_known == len(found)
        return found if is_whole else found.rows(known)

    def _scorer(self, stop_sequences: Sequence[str] | None = None, where: str = "") -> Scorer:
        stops = self._config.gen.stop_sequences if stop_sequences is None else stop_sequences
        alone, where = bool(self._data.options.outputs_begin_text), where or f"step {self._progress.step + 1}"
        return Scorer(self._data.reward_fn, self._models.learner.tokenizer, stops, alone, where)

    @cached_property
    def _takes_seeds(self) -> bool:
        return takes(self.sampler, "row_seeds")

    @cached_property
    def _overlaps(self) -> bool:
        return overlaps(self._config, self.sampler)

    @property
    def is_exact(self) -> bool:
        """Return whether the sampler's log-probs can replace the trainer's own: exact policy, full precision.

        In lower precision, sampling and training compute log-probs that differ by more than the ratios tolerate. Those
        of a sampler that does not state `exact_logprobs` may be of other weights, and are never reused.
        """
        gen, low_precision = self._config.gen, self._config.model.get("sampling_dtype") is not None
        is_policy = gen.is_plain and self.logit_mask is None and not low_precision
        is_exact = self.traits.exact_logprobs
        return gen.reused_logprobs and is_policy and self._models.is_full_precision and is_exact


def _metrics(batch: Round, known: Tensor, scored: Scored) -> Metrics:
    """Return the metrics of a round, the same on all processes; those of scores are over responses that have one.

    Args:
        batch: the round, with all responses.
        known: bool[B], whether each has a score.
        scored: those of this process. With several reward functions, `reward/<name>` is the mean of each over the
            responses to which it applies.
    """
    by_name, ranks = scored.by_name, batch.ranks
    scores = batch["scores"] if bool(known.all()) else batch["scores"][known]
    metrics: Metrics = {}
    if len(scores):
        metrics = {
            "reward/mean": float(scores.mean()),
            "reward/std": float(scores.std(correction=0)),
            "reward/min": float(scores.min()),
            "reward/max": float(scores.max()),
        }
    # A process may lack some, or all, of the metrics of episodes.
    names = sorted(set(ranks.gather(list(scored.numbers))))
    return {
        **metrics,
        "reward/unscored": float(len(batch) - len(scores)),
        "response/length_mean": float(batch.num_actions.float().mean()),
        "response/truncated_fraction": 1.0 - float(batch.ended.float().mean()),
        **(ranks.average({name: scored.numbers.get(name, []) for name in names}) if names else {}),
        **{f"reward/{name}": mean for name, mean in (ranks.average(by_name) if len(by_name) > 1 else {}).items()},
        **scored.times,
    }
