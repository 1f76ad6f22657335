"""One call of the sampler of episodes: their turns, from the first messages to the ends.

Also in this file: failed episodes of a round, with their transcripts if they end the run, and tools that nearly
always fail.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import Policy, RunView, Turn
from rlcore.ranks import Ranks
from rlcore.safe_text import shorten
from rlcore.sampling import derive_seeds, takes
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_environments.answers import Answer, read_messages, read_step
from rlcore_environments.calls import Pending, thread_advice
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import (
    CONTEXT,
    FAILED,
    MAX_NEW_TOKENS,
    MAX_TURNS,
    Attempt,
    Episode,
    transcript_of,
    warn_unclosed,
)
from rlcore_environments.kept_states import KeptStates
from rlcore_environments.tool_calls import read_turns

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
        options: dict[str, object] = {"generator": self.generator}
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


log = get_logger("environments")
FILE = "failed_episodes.jsonl"
"""The file in a run's folder with the episodes because of which it ended, one line for each."""


LEAST_CALLS, LARGEST_SHARE = 8, 0.9
"""A tool nearly always fails if, of so many calls, a larger share has the same error."""
_TOOL_ERROR = re.compile(r"error: (\S+) (raised \w+|did not return)")


class EpisodesFailed(RLCoreError, RuntimeError):
    """More episodes failed than `data.episodes.max_failed` allows."""


class Failures:
    """Counts the episodes that this process plays, and keeps those that failed until the round is checked.

    Args:
        name: the environment's name, for messages.
        max_failed: the largest share of episodes that may fail (`data.episodes.max_failed`).

    Attributes:
        run: the run, once it has begun.
    """

    def __init__(self, name: str, max_failed: float) -> None:
        self.run: RunView | None = None
        self._name, self._max_failed, self._has_warned = name, max_failed, False
        self._num_played, self._failed = 0, list[Episode]()

    def note(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that are over; the first that fail are logged."""
        failed = [episode for episode in episodes if episode.end == FAILED]
        self._num_played += len(episodes)
        self._failed += failed
        if failed and not self._has_warned:
            self._has_warned = True
            log.warning(
                "episodes failed; they have no score, and nothing is learned from them", failed=len(failed),
                of=len(episodes), first=failed[0].describe(),
            )  # fmt: skip

    def check(self, ranks: Ranks) -> None:
        """Check the episodes that all processes have noted since the last call; all call together.

        If too many of them failed, or all, their transcripts are written to the run's folder.

        Raises:
            EpisodesFailed: a larger share of them failed than is allowed.
        """
        num_played, failed, self._num_played, self._failed = self._num_played, self._failed, 0, []
        of = sum(ranks.gather([num_played]))
        found = ranks.gather([(len(failed), failed[0].failure)] if failed else [])
        count = sum(number for number, _ in found)
        is_over = count > self._max_failed * of
        if not is_over and (not count or count < of):
            return
        place = self._write(failed, ranks)
        if not is_over:
            log.warning("all episodes failed", episodes=of, first=found[0][1], transcripts=place or "not written")
            return
        raise EpisodesFailed(
            f"{count} of {of} episodes of '{self._name}' failed, more than data.episodes.max_failed = "
            f"{self._max_failed:g} allows. The first: {found[0][1]}"
            + (f". Transcripts of all that failed: {place}" if place else "")
        )

    def _write(self, failed: Sequence[Episode], ranks: Ranks) -> str:
        """Append the episodes to the file, and return where it is; empty without a run."""
        if self.run is None:
            return ""
        step, path = self.run.step, self.run.dir / FILE
        self.run.keep_folder()
        rows = ranks.gather_to_main([{"step": step, **_row(episode)} for episode in failed])
        if not ranks.is_main:
            return str(path)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, default=str) + "\n" for row in rows)
        except OSError as error:
            return f"{path} could not be written ({error.strerror})"
        return str(path)


class ToolErrors:
    """Counts how the calls of each tool end, and warns once of a tool nearly all of whose calls raise alike.

    Args:
        name: the environment's name, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name, self._warned = name, set[str]()
        self._calls, self._errors = Counter[str](), dict[str, Counter[str]]()
        self._last = dict[tuple[str, str], str]()  # an error of each tool and kind

    def note(self, episodes: Sequence[Episode]) -> None:
        """Count the results in the messages of episodes that are over."""
        for message in (message for episode in episodes for message in episode.messages):
            tool = message.get("name")
            if not isinstance(tool, str) or message["role"] == "assistant" or tool in self._warned:
                continue
            self._calls[tool] += 1
            found = _TOOL_ERROR.match(message["content"])
            errors = self._errors.setdefault(tool, Counter())
            if found is not None and found[1] == tool:
                errors[found[2]] += 1
                self._last[tool, found[2]] = message["content"].removeprefix("error: ")
        for tool in [tool for tool, count in self._calls.items() if count >= LEAST_CALLS]:
            num_calls, errors = self._calls.pop(tool), self._errors.pop(tool)  # so that later ones count on their own
            for kind, count in errors.most_common(1):
                if count > LARGEST_SHARE * num_calls:
                    self._warn(tool, count, num_calls, self._last[tool, kind])

    def _warn(self, tool: str, count: int, num_calls: int, error: str) -> None:
        self._warned.add(tool)
        advice = thread_advice(error).removeprefix("; ")
        log.warning(
            "nearly all calls of a tool fail alike, and the policy reads the error as their result", tool=tool,
            failed=count, of=num_calls, error=error[:300], environment=self._name,
            **({"remedy": advice} if advice else {}),
        )  # fmt: skip


def _row(episode: Episode) -> dict[str, object]:
    prompt = episode.prompt
    asked: dict[str, object] = {} if prompt.messages is None else {"messages": list(prompt.messages)}
    return {
        "prompt": prompt.text, **asked, "transcript": transcript_of(episode), "failure": episode.failure,
        "columns": dict(prompt.columns),
    }  # fmt: skip
