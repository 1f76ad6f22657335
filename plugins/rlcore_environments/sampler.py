"""The loop of episodes: sample a turn of all live ones as one batch, give each turn to its environment, and go on.

It calls any sampler, and is one itself. A turn is given to its environment as soon as the sampler reports it, while
other turns are still being sampled; the next batch begins when all environments have answered, so that the rows of
every batch, and with them the results, do not depend on how long an environment takes.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.logging import get_logger
from rlcore.protocols import Policy, RunView, Sampler, SamplerTraits
from rlcore.ranks import Ranks
from rlcore.sampling import derive_seeds, draw_seeds, takes
from rlcore.settings import SamplingConfig
from rlcore.types import Episodes, Message, Prompt, Row
from rlcore_environments.answers import Factory
from rlcore_environments.calls import Calls
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import FAILED, SUCCESS, Episode, Numbers, to_batch
from rlcore_environments.openings import Curriculum
from rlcore_environments.options import EpisodeOptions
from rlcore_environments.play import EpisodesFailed, Failures, Play, ToolErrors

log = get_logger("environments")
__all__ = ["EpisodeSampler", "EpisodesFailed", "Given"]
REFILL = 2**20
"""Position, among the seeds derived from that of a row, of the first episode that replaces a failed one."""


@attrs.frozen(eq=False)
class Given:
    """What the environment of a prompt receives, and what it said when the prompt was read.

    Attributes:
        columns: the prompt's columns, by which it is recognised.
        row: the row.
        seed: its seed.
        opening: the first messages; None if they are not known.
        complete: returns the prompt with the first messages, of a prompt that was read without them.
        split: `train` or `eval`.
        values: columns of the row that move over the run.
        is_fresh: whether the seed of each step follows from this one and the number of the step.
    """

    columns: Row
    row: Row
    seed: int
    opening: Sequence[Message] | None
    complete: Callable[[list[dict[str, Any]]], Prompt] | None = None
    split: str = "train"
    values: Mapping[str, float] = attrs.field(factory=dict)
    is_fresh: bool = False


class EpisodeSampler:
    """Samples episodes with a sampler of single turns.

    Args:
        sampler: continues prompts.
        factory: makes environments.
        options: the section `data.episodes`.
        make_dialogue: returns what renders messages for a tokenizer.
        given: returns what the environment received when a prompt was read.

    Attributes:
        is_rewarded_alone: whether the environment's rewards are the only ones, and none has been looked for yet.
    """

    def __init__(
        self,
        sampler: Sampler,
        factory: Factory,
        options: EpisodeOptions,
        make_dialogue: Callable[[Any], Dialogue],
        given: Callable[[Prompt], Given],
    ) -> None:
        self.inner, self.factory, self.options = sampler, factory, options
        self._make_dialogue, self.given = make_dialogue, given
        traits = SamplerTraits(sampler)
        self.exact_logprobs, self.draws_from_policy = traits.exact_logprobs, traits.draws_from_policy
        self.check, self.renew_weights = traits.check, traits.renew_weights
        self.max_turns = options.max_turns or factory.max_turns or 16
        self.curriculum: Curriculum | None = None
        self.is_rewarded_alone = False
        self._has_reward: bool | None = None  # None until an episode was played
        self._failures, self._tool_errors = Failures(factory.name, options.max_failed), ToolErrors(factory.name)
        # the metrics so far that count 0 in an episode without them
        self._counted = dict.fromkeys(f"environment/{name}" for name in factory.reward_names)
        self._batches = list[tuple[weakref.ref[Numbers], Sequence[str]]]()  # since the last call of `check_round`
        self.__signature__ = _signature(sampler)

    @cached_property
    def calls(self) -> Calls:
        """Return what calls environments."""
        limit = min(self.options.concurrency, self.factory.concurrency or self.options.concurrency)
        return Calls(limit, self.options.timeout_s, in_main=self.options.runs_in_main)

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        logit_mask: Tensor | None = None,
    ) -> Episodes:
        """Play one episode for each prompt.

        The arguments are those of `rlcore.protocols.Sampler`; `sampling.max_new_tokens` limits each turn. Episodes that
        fail are among those returned, and are counted for `check_round`.
        """
        seeds = draw_seeds(len(prompts), generator) if row_seeds is None else row_seeds
        episodes = [Episode(i, prompt, int(seed)) for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))]
        loop = Play(self, policy, sampling, self._make_dialogue(policy.tokenizer), generator, logit_mask)
        try:
            self._play(loop, episodes)
            for attempt in range(self.options.refill):
                failed = [episode for episode in episodes if episode.end == FAILED]
                self._failures.note(failed)
                for episode in failed:
                    (seed,) = derive_seeds(int(seeds[episode.index]), [REFILL + attempt])
                    episodes[episode.index] = episode.replaced(seed)
                self._play(loop, [episodes[episode.index] for episode in failed])
        finally:
            loop.close(episodes)
        self._failures.note(episodes)
        self._tool_errors.note(episodes)
        played = [episode for episode in episodes if episode.end != FAILED]
        if played:
            self._has_reward = bool(self._has_reward) or any(e.by_name or any(e.rewards) for e in played)
        if not any(episode.columns for episode in episodes):  # what the sampler returns is known from none of them
            empty = self.inner(policy, [], sampling, **loop.given([]))
            columns = {name: array for name, array in empty.columns.items() if array.shape == empty.mask.shape}
            if not episodes:
                columns["rewards"] = torch.zeros(empty.mask.shape, device=empty.mask.device)
                return Episodes(empty.tokens, empty.mask, empty.action_mask, empty.ended, columns)
        else:
            columns = {}
        self._counted |= dict.fromkeys(name for episode in episodes for name in episode.counted)
        batch = to_batch(
            policy, episodes, columns=list(columns), counted=list(self._counted), tools=self.factory.tools,
            refills=self.options.refill > 0, records_tokens=self.options.record_tokens,
        )  # fmt: skip
        if isinstance(batch.numbers, Numbers):
            self._batches.append((weakref.ref(batch.numbers), batch.failures))
        return batch

    @property
    def source(self) -> str:
        """Return the fingerprint of the source of an environment in another process; empty for others."""
        return self.factory.source

    def open(self, run: RunView) -> None:
        """Let the values that move over a run follow it, and write failed episodes to its folder if they end it."""
        self._failures.run = run
        if self.curriculum is not None:
            self.curriculum.run = run

    def _play(self, loop: Play, episodes: list[Episode]) -> None:
        for episode in episodes:
            episode.begin()
        loop.open(episodes)
        loop.play([episodes[k :: self.options.cohorts] for k in range(self.options.cohorts)])

    def check_round(self, ranks: Ranks) -> None:
        """Check how many of the episodes failed that all processes have played since the last call; all call together.

        Named rewards, and the success, that some of these episodes have for the first time become metrics of all.

        Raises:
            EpisodesFailed: a larger share of them failed than `data.episodes.max_failed` allows.
        """
        run = self._failures.run
        if run is not None and SUCCESS in run.metrics:  # also before the run was resumed
            self._counted[SUCCESS] = None
        self._counted |= dict.fromkeys(sorted(set(ranks.gather(list(self._counted)))))
        for numbers, failed_ones in self._batches:
            if (known := numbers()) is not None:
                known.add(self._counted, failed_ones)
        self._batches = []
        self._failures.check(ranks)
        if self.is_rewarded_alone:
            self._check_rewards(ranks)

    def _check_rewards(self, ranks: Ranks) -> None:
        """Warn once if none of the first episodes has a reward, though no reward function gives another one."""
        found = [each for each in ranks.gather([self._has_reward]) if each is not None]
        self.is_rewarded_alone = not found  # look again after the next round if no episode was played
        if found and not any(found) and ranks.is_main:
            log.warning(
                "no episode of the first round had a reward: the environment gave 0 everywhere, and there is no reward "
                "function. If it never gives rewards, give a reward function (data.reward_fn); if the policy has not "
                "yet earned one, nothing is learned until it does",
                environment=self.factory.name,
            )  # fmt: skip


def _signature(sampler: Sampler) -> inspect.Signature:
    """Return the signature of a sampler of episodes: it takes a logit mask and seeds if that of turns does."""
    whole = inspect.signature(EpisodeSampler.__call__)
    taken = {"logit_mask": takes(sampler, "logit_mask"), "row_seeds": takes(sampler, "row_seeds")}
    kept = [each for name, each in whole.parameters.items() if name != "self" and taken.get(name, True)]
    return whole.replace(parameters=kept)
