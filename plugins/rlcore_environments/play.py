"""One call of the sampler of episodes: their turns, from the first messages to the ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy, Turn
from rlcore.safe_text import shorten
from rlcore.sampling import derive_seeds, takes
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_environments.answers import Answer, read_messages, read_step
from rlcore_environments.attempt import Attempt, warn_unclosed
from rlcore_environments.calls import Pending
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import CONTEXT, MAX_NEW_TOKENS, MAX_TURNS, Episode
from rlcore_environments.kept_states import KeptStates
from rlcore_environments.turns import read_turns

if TYPE_CHECKING:
    from rlcore_environments.sampler import EpisodeSampler


class Play:
    """One call of the sampler of episodes."""

    def __init__(
        self,
        sampler: EpisodeSampler,
        policy: Policy,
        sampling: SamplingConfig,
        dialogue: Dialogue,
        generator: torch.Generator | None,
        logit_mask: Tensor | None,
    ) -> None:
        self.sampler, self.policy, self.sampling, self.dialogue = sampler, policy, sampling, dialogue
        self.generator, self.logit_mask = generator, logit_mask
        self.kept, self._attempts, self._closing = KeptStates(), dict[int, Attempt](), list[Pending]()
        if policy.outputs_begin_text:
            raise ConfigError("data.environment: an encoder-decoder begins every output anew; name a causal model")

    def open(self, episodes: Sequence[Episode]) -> None:
        """Make the environment of each episode, and reset it."""
        self._settle([(episode, self._open(episode)) for episode in episodes])

    def _begin(self, episode: Episode, found: list[dict[str, Any]]) -> None:
        complete = self.sampler.given(episode.read).complete
        if complete is None:
            self._check_opening(episode, found)
            return
        try:
            episode.begin_with(complete(found), found, self.dialogue.text(found))
        except DataError as error:  # such as a prompt that is too long
            episode.fail(str(error))

    def _open(self, episode: Episode) -> Pending:
        attempt = self._attempts[episode.index] = Attempt(self.sampler.factory)
        given = self.sampler.given(episode.read)
        episode.values = given.values
        return self.sampler.calls.start(attempt.reset, dict(given.row), given.seed, thread=attempt.thread)

    def _check_opening(self, episode: Episode, found: list[dict[str, Any]]) -> None:
        said = [(each["role"], each["content"]) for each in found]
        opening = self.sampler.given(episode.read).opening
        if opening is not None and said != [(each["role"], each["content"]) for each in opening]:
            plain = "".join(content for _, content in said)
            episode.fail(
                f"reset returned {shorten(plain)}, and other messages for the same row and seed when the prompts were "
                "read; take random numbers from `seed` alone"
            )

    def play(self, cohorts: Sequence[Sequence[Episode]]) -> None:
        """Play all episodes to their ends; while the environments of a cohort answer, the next one is sampled."""
        pending: list[list[tuple[Episode, Pending]]] = [[] for _ in cohorts]
        while any(not episode.end for cohort in cohorts for episode in cohort):
            for k, cohort in enumerate(cohorts):
                self._settle(sorted(pending[k], key=lambda pair: pair[0].index))
                pending[k] = self._turn([episode for episode in cohort if not episode.end])

    def _turn(self, live: Sequence[Episode]) -> list[tuple[Episode, Pending]]:
        """Sample the next turn of live episodes, and return the calls of their environments."""
        alike: dict[tuple[int, tuple[str, ...]], list[Episode]] = {}
        most, longest = self.sampler.options.max_new_tokens, self.policy.max_prompt_length
        for episode in live:
            room = most - episode.num_new if most else self.sampling.max_new_tokens
            if room <= 0:
                episode.end = MAX_NEW_TOKENS
            elif longest and len(episode.tokens) > longest:
                episode.end = CONTEXT
                if not episode.turns:  # nothing was chosen, so there is nothing to score
                    episode.fail(f"the prompt has {len(episode.tokens)} tokens, and the model takes at most {longest}")
            else:
                alike.setdefault((min(room, self.sampling.max_new_tokens), episode.stop), []).append(episode)
        pending: list[tuple[Episode, Pending]] = []
        for (limit, stop), group in sorted(alike.items()):
            self._sample(group, limit, stop, pending)
        for episode in live:
            if episode.end:
                self._over(episode)
        return pending

    def _settle(self, pending: Sequence[tuple[Episode, Pending]]) -> None:
        """Take what environments returned; episodes that failed are played again as often as `retries` allows."""
        while pending:
            failed = []
            for episode, call in pending:
                if not self._took(episode, call):
                    failed.append(episode)
                elif episode.end:
                    self._over(episode)
            pending = self._again(failed)

    def _took(self, episode: Episode, call: Pending) -> bool:
        """Take what an environment returned; False if it failed, and the episode is to be played again."""
        try:
            found = call.result()
            answer = read_step(found) if episode.turns else read_messages(found, "reset")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  an environment may raise anything
            if episode.retries < self.sampler.options.retries and self.sampler.factory.replayable:
                return False
            episode.fail_with(error)
            return True
        if isinstance(answer, Answer):
            self._answer(episode, answer)
        else:
            self._begin(episode, answer)
        return True

    def given(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Return the optional arguments of the sampler of turns."""
        options: dict[str, Any] = {"generator": self.generator}
        if takes(self.sampler.inner, "row_seeds"):
            options["row_seeds"] = [turn_seed(episode.seed, len(episode.turns)) for episode in episodes]
        if self.logit_mask is not None:
            options["logit_mask"] = self.logit_mask
        return options

    def _sample(
        self, group: list[Episode], limit: int, stop: tuple[str, ...], pending: list[tuple[Episode, Pending]]
    ) -> None:
        sampling = evolve(
            self.sampling, max_new_tokens=limit, min_new_tokens=min(limit, self.sampling.min_new_tokens),
            stop_sequences=tuple(dict.fromkeys([*self.sampling.stop_sequences, *stop])),
        )  # fmt: skip
        prompts, reported = [episode.next_prompt for episode in group], set[int]()

        def report(indices: Sequence[int], part: Trajectories) -> None:
            reported.update(indices)
            self._give(sampling, [group[i] for i in indices], part, pending)

        options = self.given(group)
        if takes(self.sampler.inner, "on_batch"):
            options["on_batch"] = report
        named = {episode.index: prompt for episode, prompt in zip(group, prompts, strict=True)}
        with self.kept.of(named) if self.sampler.options.keep_states else nullcontext():
            batch = self.sampler.inner(self.policy, prompts, sampling, **options)
        left = [i for i in range(len(group)) if i not in reported]
        if left:
            report(left, batch.rows(torch.tensor(left, device=batch.tokens.device)))

    def _give(
        self,
        sampling: SamplingConfig,
        episodes: list[Episode],
        part: Trajectories,
        pending: list[tuple[Episode, Pending]],
    ) -> None:
        """Append sampled turns to their episodes, and call the environments with them."""
        sampled = read_turns(self.policy, episodes, part, sampling, self.sampler.factory.tools)
        for episode, each in zip(episodes, sampled, strict=True):
            episode.add_turn(each.turn, each.tokens, each.columns)
            if not each.tokens:
                episode.fail("the sampler returned a turn without tokens")
                continue
            pending.append((episode, self._step(episode, each.turn)))

    def _step(self, episode: Episode, turn: Turn) -> Pending:
        attempt = self._attempts[episode.index]
        return self.sampler.calls.start(attempt.step, turn, thread=attempt.thread)

    def _answer(self, episode: Episode, answer: Answer) -> None:
        episode.take(answer)
        text = self.dialogue.text(answer.messages)
        if episode.end:
            episode.add_reply(answer.messages, (), text)
        elif len(episode.turns) >= self.sampler.max_turns:
            episode.end = MAX_TURNS
        else:
            self._reply(episode, answer, text)

    def _reply(self, episode: Episode, answer: Answer, text: str) -> None:
        """Append what the environment says, if it can be rendered and the context has room for it and one token."""
        self.dialogue.check(episode.prompt.messages or (), answer.messages)
        longest = self.policy.max_prompt_length
        room = max(longest - len(episode.tokens), 0) if longest else None
        try:
            tokens = self.dialogue.reply(answer.messages, last=episode.tokens[-1], most=room)
        except DataError as error:
            episode.fail(str(error))
            return
        if not tokens:
            episode.fail(
                f"no token of the environment's answer {shorten(text)} would stand between this turn and the next one, "
                "so they would count as one turn; answer with a text, such as a line break"
            )
            return
        if room is not None and len(tokens) > room:
            episode.end = CONTEXT
        else:
            episode.add_reply(answer.messages, tokens, text)

    def _again(self, episodes: Sequence[Episode]) -> list[tuple[Episode, Pending]]:
        """Play episodes up to their last turn in new environments, all at a time, and return the last call of each.

        A call that fails on the way is the last one of its episode.
        """
        for episode in episodes:
            episode.retries += 1
            self._close(episode)
        calls = [self._open(episode) for episode in episodes]
        for k in range(max((len(episode.turns) for episode in episodes), default=0)):
            for i, episode in enumerate(episodes):
                if k < len(episode.turns) and not calls[i].failed():
                    calls[i] = self._step(episode, episode.turns[k])
        return list(zip(episodes, calls, strict=True))

    def _over(self, episode: Episode) -> None:
        """Free what an episode held that has ended."""
        self.kept.drop(episode.index)
        self._close(episode)

    def _close(self, episode: Episode) -> None:
        """Begin to close the environment of an episode, if it has the method; nobody closes it again."""
        attempt = self._attempts.pop(episode.index, None)
        close = attempt.end() if attempt is not None else None
        if attempt is not None and close is not None:
            self._closing.append(self.sampler.calls.start(close, thread=attempt.thread, is_last=True))

    def close(self, episodes: Sequence[Episode]) -> None:
        """Close every environment that is still open, and wait for all that are being closed; an error is logged."""
        for episode in episodes:
            self._close(episode)
        for call in self._closing:
            try:
                call.result()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  the episode is over, and its tokens are known
                warn_unclosed(error)


def turn_seed(seed: int, index: int) -> int:
    """Return the seed of a turn of a row: that of the row itself for the first one."""
    return seed if index == 0 else derive_seeds(seed, [index])[0]
