"""One episode: the tokens and messages so far, its environment, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs

from rlcore.components import describe_error
from rlcore.protocols import Turn
from rlcore.safe_text import shorten
from rlcore.types import Prompt
from rlcore_environments.answers import LARGEST_REWARD, Answer, BadAnswer, to_metric
from rlcore_environments.calls import CallTooLate, thread_advice
from rlcore_environments.process import ProcessDied, RemoteError
from rlcore_environments.worker import place_of

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

    def begin_with(self, prompt: Prompt, opening: list[dict[str, Any]], text: str) -> None:
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
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
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

    def add_reply(self, messages: Sequence[dict[str, Any]], tokens: Sequence[int], text: str) -> None:
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
