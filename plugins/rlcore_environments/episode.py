"""One episode: the tokens and messages so far, its environment, and how it ended.

Also in this file: one attempt at an episode: its environment, which is closed once, whoever made or used it last;
episodes that are over as one batch of trajectories.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs
import torch

from rlcore.components import describe_error
from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import EnvironmentTraits, Policy, Turn
from rlcore.safe_text import shorten
from rlcore.types import Episodes, Prompt, Trajectories
from rlcore_environments.answers import LARGEST_REWARD, Answer, BadAnswer, Factory, check_environment, to_metric
from rlcore_environments.calls import CallTooLate, finished, thread_advice
from rlcore_environments.process import ProcessDied, RemoteError
from rlcore_environments.worker import OwnThread, place_of

DONE, TRUNCATED, FAILED = "done", "truncated", "failed"
MAX_TURNS, MAX_NEW_TOKENS, CONTEXT = "max_turns", "max_new_tokens", "context"
OF_TURNS = ("reward", "truncated")
"""Keys of the policy's messages in a transcript."""
TOOLS = "tools"
"""Key of the first message of a transcript, with the schemas of the tools."""
TOKENS = "tokens"
"""Key of the first message of a transcript, with the token ids of the episode."""
ENDS = (DONE, TRUNCATED, MAX_TURNS, MAX_NEW_TOKENS, CONTEXT, FAILED)
SUCCESS = "episode/success"
"""The metric of `info["success"]`."""
OF_EPISODES = {"success": SUCCESS, "tool_errors": "episode/tool_errors"}
"""Keys of `info` that have the same meaning for every environment → their metrics."""


@attrs.define(eq=False)
class Episode:
    """An episode while it is played.

    Attributes:
        index: its row in the batch.
        prompt: the prompt with the environment's first messages.
        seed: of sampling, for this row.
        read: the prompt as it was read, which has not the first messages if the environment is reset late.
        opening: these first messages; empty if the prompt had them when it was read.
        opening_text: how they read.
        values: columns of the row that move over the run (`data.episodes.curriculum`).
        refilled: how many failed episodes it replaces.
        tokens: all tokens so far.
        chosen: for each token, whether the policy chose it.
        rewards: for each token, its reward.
        columns: for each token, what the sampler returned about it, by name; 0 where it returned nothing.
        turns: what the policy wrote.
        messages: the messages after the prompt.
        output: the text after the prompt.
        num_new: tokens that the policy chose.
        end: one of `ENDS`; empty while it goes on.
        failure: why it failed.
        info: the last `info` of the environment.
        stop: strings that end the next turn.
        by_name: sums of rewards that have names.
        retries: how often it was played again.
    """

    index: int
    prompt: Prompt
    seed: int
    read: Prompt = attrs.field(default=attrs.Factory(lambda self: self.prompt, takes_self=True))
    opening: list[dict[str, Any]] = attrs.field(factory=list)
    opening_text: str = ""
    values: Mapping[str, float] = attrs.field(factory=dict)
    refilled: int = 0
    tokens: list[int] = attrs.field(factory=list)
    chosen: list[bool] = attrs.field(factory=list)
    rewards: list[float] = attrs.field(factory=list)
    columns: dict[str, list[float]] = attrs.field(factory=dict)
    turns: list[Turn] = attrs.field(factory=list)
    messages: list[dict[str, Any]] = attrs.field(factory=list)
    output: str = ""
    num_new: int = 0
    end: str = ""
    failure: str = ""
    info: Mapping[str, Any] = attrs.field(factory=dict)
    stop: tuple[str, ...] = ()
    by_name: dict[str, float] = attrs.field(factory=dict)
    retries: int = 0

    def begin(self) -> None:
        """Take the tokens of the prompt."""
        self.tokens = list(self.prompt.tokens)
        self.chosen, self.rewards = [False] * len(self.tokens), [0.0] * len(self.tokens)

    def begin_with(self, prompt: Prompt, opening: list[dict[str, object]], text: str) -> None:
        """Take the first messages of an environment that was reset late, and the tokens of the prompt with them."""
        self.prompt, self.opening_text = prompt, text
        self.opening = [{name: value for name, value in each.items() if name not in OF_TURNS} for each in opening]
        self.begin()

    def replaced(self, seed: int) -> Episode:
        """Return a new episode to the same prompt, in place of this one."""
        return Episode(self.index, self.read, seed, refilled=self.refilled + 1)

    @property
    def where(self) -> str:
        """The place of the episode, for messages."""
        return f"episode {self.index}, turn {len(self.turns)}"

    def add_turn(self, turn: Turn, tokens: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """Append a sampled turn.

        Args:
            turn: what it says.
            tokens: its K tokens.
            columns: K numbers by name.
        """
        for name, values in columns.items():
            row = self.columns.setdefault(name, [])
            row += [0.0] * (len(self.tokens) - len(row)) + list(values)
        self.tokens += tokens
        self.chosen += [True] * len(tokens)
        self.rewards += [0.0] * len(tokens)
        self.num_new += len(tokens)
        self.turns.append(turn)
        message: dict[str, object] = {"role": "assistant", "content": turn.text}
        if turn.truncated:
            message["truncated"] = True
        if turn.tool_calls:
            message["tool_calls"] = [dict(call) for call in turn.tool_calls]
        self.messages.append(message)
        self.output += turn.text

    def take(self, answer: Answer) -> None:
        """Take the answer to the last turn: its reward, and its end if it has one; `add_reply` adds the messages."""
        if not abs(self.total + answer.reward) <= LARGEST_REWARD:
            self.fail(f"the sum of the rewards is {self.total + answer.reward:g}, outside the range of float32")
            return
        last = len(self.chosen) - 1 - self.chosen[::-1].index(True)
        self.rewards[last] += answer.reward
        self.messages[-1]["reward"] = answer.reward
        for name, reward in answer.rewards.items():
            if name:
                self.by_name[name] = self.by_name.get(name, 0.0) + reward
        self.info, self.stop = {**self.info, **answer.info}, answer.stop
        was_cut = self.turns[-1].truncated  # the policy would have gone on, whatever the environment made of it
        self.end = DONE if answer.done and not was_cut else TRUNCATED if answer.done or answer.truncated else ""

    def add_reply(self, messages: Sequence[dict[str, object]], tokens: Sequence[int], text: str) -> None:
        """Append what the environment says; no token of it is chosen."""
        self.tokens += tokens
        self.chosen += [False] * len(tokens)
        self.rewards += [0.0] * len(tokens)
        self.messages += [{name: value for name, value in each.items() if name not in OF_TURNS} for each in messages]
        self.output += text

    def fail(self, reason: str) -> None:
        """End the episode without a score."""
        self.end, self.failure = FAILED, f"{self.where}: {reason}"

    def fail_with(self, error: BaseException) -> None:
        """End the episode because of what a call raised; Ctrl-C is raised again."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, BadAnswer):
            self.fail(str(error))
        elif isinstance(error, RemoteError):
            self.fail(f"the environment raised {error}{thread_advice(str(error))}")
        elif isinstance(error, ProcessDied):
            self.fail(f"the environment is gone: {error}")
        elif isinstance(error, CallTooLate):
            self.fail(f"the environment {error}")
        else:
            raised = describe_error(error)
            self.fail(f"the environment raised {raised}{place_of(error)}{thread_advice(raised)}")

    @property
    def segments(self) -> list[list[int]]:
        """The tokens as they were read and sampled, in turn: of the prompt, of a turn, of its answer, and so on."""
        runs = groupby(zip(self.tokens, self.chosen, strict=True), lambda pair: pair[1])
        return [[token for token, _ in run] for _, run in runs]

    @property
    def next_prompt(self) -> Prompt:
        """The dialogue so far, as the prompt of the next turn."""
        return Prompt(self.prompt.text + self.output, tuple(self.tokens), self.prompt.columns, self.prompt.messages)

    @property
    def total(self) -> float:
        """The sum of all rewards."""
        return sum(self.rewards)

    @property
    def numbers(self) -> dict[str, float | None]:
        """The metrics of the episode, without those of named rewards and of tools."""
        failed = self.end == FAILED
        counted = {f"episode/{end}": float(self.end == end) for end in ENDS}
        own: dict[str, float | None] = {
            OF_EPISODES.get(name, f"environment/{name}"): number
            for name, value in self.info.items()
            if (number := to_metric(value)) is not None
        }
        if failed:
            own = dict.fromkeys(own)
        moved = {f"curriculum/{name}": float(value) for name, value in self.values.items()}
        return {"episode/turns": float(len(self.turns)), **counted, **own, **moved}

    @property
    def counted(self) -> dict[str, float]:
        """The metrics that count 0 in an episode without them: those of named rewards, and the success."""
        success = to_metric(self.info.get("success"))
        stated = {} if success is None else {SUCCESS: success}
        return stated | {f"environment/{name}": total for name, total in self.by_name.items()}

    def describe(self) -> str:
        """Return the failure on one line."""
        return shorten(self.failure, 300)


log = get_logger("environments")


class EpisodeOver(RLCoreError, RuntimeError):
    """A turn was given to an environment whose episode has ended."""


class Attempt:
    """Makes, resets and steps an environment in one thread, any call of which may be given up.

    Args:
        factory: makes the environment.

    Attributes:
        thread: the thread of its calls; None if environments are in another process.
    """

    def __init__(self, factory: Factory) -> None:
        self._factory, self._lock, self._is_over = factory, threading.Lock(), False
        self._environment: Any = None
        self.thread = None if factory.is_remote else OwnThread("rlcore-environment")

    def reset(self, row: Mapping[str, object], seed: int) -> Any:
        """Make the environment, and return its first messages; if the attempt is over by then, close what was made."""
        if self._is_over:
            return ()
        made = check_environment(self._factory.make(), self._factory)
        if self._keep(made):
            return made.reset(row, seed=seed)
        return finished(EnvironmentTraits(made).close())

    def _keep(self, made: object) -> bool:
        with self._lock:
            if not self._is_over:
                self._environment = made
            return not self._is_over

    def step(self, turn: Turn) -> Any:
        """Return the answer to a turn.

        Raises:
            EpisodeOver: the attempt is over; the environment is not called.
        """
        made = self._environment
        if self._is_over or made is None:
            raise EpisodeOver(
                f"turn {turn.index} comes after the end of its episode, or before its beginning; make a new "
                "environment for each episode, and reset it once"
            )
        return made.step(turn)

    def end(self) -> Callable[[], Any] | None:
        """End the attempt, and return what closes its environment; without that, the thread ends too."""
        with self._lock:
            made, self._environment, self._is_over = self._environment, None, True
        if "close" in (traits := EnvironmentTraits(made)):
            return traits.close
        if self.thread is not None:
            self.thread.end()
        return None


def warn_unclosed(error: BaseException) -> None:
    """Log that an environment was not closed: its episode is over, and what it said is known."""
    reason = f"close {error}" if isinstance(error, CallTooLate) else describe_error(error)
    log.warning("an environment could not be closed", error=reason)


def to_batch(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    columns: Sequence[str] = (),
    counted: Sequence[str] = (),
    tools: Sequence[object] = (),
    refills: bool = False,
    records_tokens: bool = False,
) -> Episodes:
    """Return the trajectories of B episodes on the policy's device, without what follows the last chosen token.

    Args:
        policy: the policy.
        episodes: B episodes that are over.
        columns: names of numbers of tokens that the batch has even if no episode has them.
        counted: metrics that are 0 in an episode without them, unless it failed.
        tools: JSON schemas of the tools that the policy may call, so that calls are counted.
        refills: whether failed episodes are replaced, so that replacements are counted.
        records_tokens: whether transcripts have token ids.
    """
    pad = policy.tokenizer.pad_token_id
    lengths = [_length(episode) for episode in episodes]
    tokens = [episode.tokens[:length] for episode, length in zip(episodes, lengths, strict=True)]
    chosen = [episode.chosen[:length] for episode, length in zip(episodes, lengths, strict=True)]
    batch = Trajectories.stack(
        tokens, chosen, ended=[episode.end == DONE for episode in episodes], pad_id=pad if isinstance(pad, int) else 0
    )
    names = dict.fromkeys([*columns, *(name for episode in episodes for name in episode.columns)])
    rows = {name: [episode.columns.get(name, []) for episode in episodes] for name in names}
    rows["rewards"] = [episode.rewards for episode in episodes]
    padded = {name: _padded(values, lengths, batch.tokens.shape[1]) for name, values in rows.items()}
    batch = batch.with_columns(**padded).to(policy.device)
    names = dict.fromkeys([*counted, *(name for episode in episodes for name in episode.counted)])
    metrics = [_numbers(episode, names, has_tools=bool(tools)) for episode in episodes]
    if refills:
        metrics = [each | {"episode/refilled": float(e.refilled)} for each, e in zip(metrics, episodes, strict=True)]
    keys = dict.fromkeys(key for each in metrics for key in each)
    return Episodes(
        batch.tokens, batch.mask, batch.action_mask, batch.ended, batch.columns,
        outputs=[episode.opening_text + episode.output for episode in episodes],
        arguments=_arguments(episodes, _about(tools, records_tokens=records_tokens)),
        numbers=Numbers({key: [each.get(key) for each in metrics] for key in keys}),
        failures=[episode.failure for episode in episodes],
    )  # fmt: skip


class Numbers(dict[str, list[float | None]]):
    """The metrics of a batch; those that count 0 where they are missing are added before means are taken."""

    def add(self, names: Iterable[str], failures: Sequence[str]) -> None:
        """Add metrics that no episode of the batch has; `failures` are those of the batch."""
        for name in names:
            self.setdefault(name, [None if failure else 0.0 for failure in failures])


def _numbers(episode: Episode, counted: Iterable[str], *, has_tools: bool) -> dict[str, float | None]:
    """Return the metrics of an episode, with 0 for what did not happen in it; of a failed one its end alone counts."""
    known = episode.counted
    named = {name: None if episode.failure else known.get(name, 0.0) for name in counted}
    calls = float(sum(len(turn.tool_calls) for turn in episode.turns))
    return episode.numbers | ({"episode/tool_calls": calls} if has_tools else {}) | named


def _arguments(episodes: Sequence[Episode], about: Callable[[Episode], dict[str, Any]]) -> dict[str, list[Any]]:
    asked = [_plain(e.prompt.messages or [{"role": "user", "content": e.prompt.text}]) for e in episodes]
    said = [_plain(episode.messages) for episode in episodes]
    return {
        "messages": [[*before, *after] for before, after in zip(asked, said, strict=True)],
        "prompt_messages": asked,
        "turns": [[turn.text for turn in episode.turns] for episode in episodes],
        "transcript": [transcript_of(episode, about(episode)) for episode in episodes],
        "info": [{**episode.values, **episode.info, "end": episode.end} for episode in episodes],
        "environment_rewards": [
            [reward for reward, is_chosen in zip(episode.rewards, episode.chosen, strict=True) if is_chosen]
            for episode in episodes
        ],
    }


def _plain(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Return messages as reward functions receive them."""
    names = ("role", "content", "name", "tool_calls", "tool_call_id")
    return [{name: value for name, value in each.items() if name in names} for each in messages]


def _about(tools: Sequence[object], *, records_tokens: bool) -> Callable[[Episode], dict[str, Any]]:
    """Return what tells the things about an episode that the first message of its transcript has.

    They are the schemas of the tools as JSON, since the template may render them, and the token ids, if asked for.
    """
    schemas = {TOOLS: json.dumps(list(tools), default=str)} if tools else {}
    return lambda episode: schemas | ({TOKENS: episode.segments} if records_tokens else {})


def transcript_of(episode: Episode, about: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    """Return who said what after the prompt that was read, with the reward of each turn, and why it failed.

    Args:
        episode: the episode.
        about: further values of the first message.
    """
    rows = [dict(each) for each in (*episode.opening, *episode.messages)]
    if rows:
        rows[0].update(about or {})
    return [*rows, {"role": "failure", "content": episode.failure}] if episode.failure else rows


def _length(episode: Episode) -> int:
    if True not in episode.chosen:
        return len(episode.prompt.tokens)
    return len(episode.chosen) - episode.chosen[::-1].index(True)


def _padded(rows: Sequence[Sequence[float]], lengths: Sequence[int], width: int) -> torch.Tensor:
    found = torch.zeros(len(rows), width)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        kept = row[:length]
        found[i, : len(kept)] = torch.tensor(kept, dtype=torch.float32)
    return found
