"""The reward `human`: put completions before people, and wait for their judgements."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore.config import path_named
from rlcore.errors import ConfigError, RanksError, RewardError
from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.safe_text import write
from rlcore_rewards.human.board import Board
from rlcore_rewards.human.config import HumanConfig
from rlcore_rewards.human.judgement import RANK, SCORE, Item, write_agreement
from rlcore_rewards.human.web_page import PageServer, build_app

log = get_logger("human")
POLL_S = 0.1
REMIND_S = 60.0
TIED = 0.5
"""The score of equal completions of a prompt, which are not ranked."""
FEWEST_SCORES = 2
"""A step that a signal interrupts is finished if so many of its completions are judged; trainers need two."""


class HumanReward:
    """A reward function that returns what people think of each completion; None where they could not judge.

    It is a coroutine function, so that the completions of several sub-batches wait for people at the same time. The
    page is served from the first question that `judgements.jsonl` does not answer until `close`.

    Args:
        config: the options.

    Raises:
        ConfigError: the range of scores is empty.
    """

    def __init__(self, config: HumanConfig) -> None:
        if config.low >= config.high:
            raise ConfigError(f"human.low = {config.low:g}: must be below human.high = {config.high:g}")
        self.config = config
        self._run: RunView | None = None
        self._board: Board | None = None
        self._server: PageServer | None = None
        self._asked: tuple[int, dict[str, Item]] = (0, {})
        self._is_ended = False
        self._link, self._printed_at = "", 0.0

    def open(self, run: RunView) -> None:
        """Receive the run, in whose folder judgements are kept.

        Raises:
            RanksError: the run has several processes.
        """
        if run.ranks.world > 1:
            raise RanksError(f"reward 'human' works in runs of one process, and this one has {run.ranks.world}")
        self._run, self._is_ended = run, False

    def close(self) -> None:
        """Stop serving the page."""
        if self._server is not None:
            self._server.close()
        self._server = self._board = None

    async def __call__(
        self,
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, object]] | None] | None = None,
    ) -> list[float | None]:
        """Return the score of each output when all are judged.

        Raises:
            RewardError: people took longer than `timeout_s`.
        """
        scores: list[float | None] = [None] * len(outputs)
        asked: list[tuple[Item, list[int]]] = []
        for rows in self._groups(prompts):
            texts = _shuffled(prompts[rows[0]], {outputs[i] for i in rows})
            if self.config.mode == RANK and len(texts) == 1:  # nothing to compare; equal completions are tied
                for i in rows:
                    scores[i] = TIED if len(rows) > 1 else None
            else:
                turns = None if messages is None else _before(messages[rows[0]], outputs[rows[0]])
                asked.append((self._item(prompts[rows[0]], texts, turns), rows))
        found = await self._judged([item for item, _ in asked])
        for item, rows in asked:
            by_output = dict(zip(item.outputs, found.get(item.key, ()), strict=False))
            for i in rows:
                scores[i] = by_output.get(outputs[i])
        if self._run is not None and self._folder == self._run.dir:
            write_agreement(self._folder)  # for the report of the run
        return scores

    def _groups(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the indices of the completions of each question, in `rank` mode those of one prompt."""
        groups: dict[Any, list[int]] = {}
        for i, prompt in enumerate(prompts):
            groups.setdefault(i if self.config.mode == SCORE else prompt, []).append(i)
        return list(groups.values())

    def _item(self, prompt: str, outputs: tuple[str, ...], turns: list[dict[str, object]] | None) -> Item:
        config = self.config
        scale = (config.low, config.high, config.interval) if config.mode == SCORE else ()
        return Item(config.mode, prompt, outputs, turns, scale, 0 if self._run is None else self._run.step + 1)

    async def _judged(self, items: Sequence[Item]) -> dict[str, tuple[float | None, ...]]:
        """Return the scores of items by their keys, without those that the end of the run leaves open."""
        board, begun = self._opened(), time.monotonic()
        step = items[0].step if items else 0
        if self._asked[0] != step:
            self._asked = (step, {})
        self._asked[1].update({item.key: item for item in items})
        board.ask(items)
        try:
            while waiting := sum(board.scores(item) is None for item in items):
                if self._run is not None and self._run.is_stopping:
                    self._check_worth(board, self._run)
                    break
                self._serve(board)
                self._remind(waiting)
                if self.config.timeout_s is not None and time.monotonic() - begun > self.config.timeout_s:
                    raise RewardError(
                        f"{waiting} of {len(items)} questions were not answered by people within human.timeout_s = "
                        f"{self.config.timeout_s:g} seconds; those that were are in {self._folder}: raise this limit, "
                        "and continue with run.resume=auto"
                    )
                await asyncio.sleep(POLL_S)
            return {item.key: scores for item in items if (scores := board.scores(item)) is not None}
        finally:
            board.withdraw(items)

    def _check_worth(self, board: Board, run: RunView) -> None:
        """Give up the step if too few of its completions are judged to learn from; the last evaluation needs none."""
        judged = [score for item in self._asked[1].values() for score in board.scores(item) or ()]
        is_enough = sum(score is not None for score in judged) >= FEWEST_SCORES or run.step == run.total_steps
        if not self._is_ended:  # once for all sub-batches
            self._is_ended = True
            left = "completions that are not judged get no reward"
            log.warning(left if is_enough else "too few completions are judged to finish the step; judgements are kept")
        if not is_enough:
            raise KeyboardInterrupt

    @property
    def _folder(self) -> Path:
        if self.config.folder is not None:
            return path_named(self.config.folder)
        if self._run is None:
            raise ConfigError("human.folder is not set: outside a run, name a folder for judgements.jsonl")
        return self._run.dir

    def _opened(self) -> Board:
        if self._board is None:
            folder, run = self._folder, self._run
            folder.mkdir(parents=True, exist_ok=True)
            keep = run.keep_folder if run is not None and folder == run.dir else lambda: None
            self._board = Board(
                folder, judges=self.config.judges, second_opinion=self.config.second_opinion,
                lease_s=self.config.lease_s, before_first=keep,
            )  # fmt: skip
        return self._board

    def _serve(self, board: Board) -> None:
        """Serve the page and print its link, once."""
        if self._server is None:
            token = secrets.token_urlsafe(24)
            app = build_app(board, token, question=self.config.question or _question(self.config))
            self._server = PageServer(app, host=self.config.host, port=self.config.port)
            # After '#', browsers send nothing to servers, so that no log or referrer contains the token.
            self._link, self._printed_at = f"{self._server.address}#{token}", time.monotonic()
            write(f"people judge completions at {self._link}", sys.stderr)

    def _remind(self, waiting: int) -> None:
        """Print the link again after each minute of waiting, with the number of questions that wait."""
        if time.monotonic() - self._printed_at >= REMIND_S:
            self._printed_at = time.monotonic()
            questions = "1 question waits" if waiting == 1 else f"{waiting} questions wait"
            write(f"{questions} for people at {self._link}", sys.stderr)


def _question(config: HumanConfig) -> str:
    if config.mode == RANK:
        return "Which completion is best? Rank 1 is the best one; equal ranks are ties."
    return f"How good is this completion? {config.high:g} is the best score, {config.low:g} the worst."


def _before(messages: Sequence[Mapping[str, object]] | None, output: str) -> list[dict[str, Any]] | None:
    """Return a conversation without the answer; an assistant's message that the answer continues stays as it was."""
    if messages is None:
        return None
    *turns, last = map(dict, messages)
    begun = str(last.get("content", "")).removesuffix(output)
    return [*turns, {**last, "content": begun}] if begun else turns


def _shuffled(prompt: str, outputs: set[str]) -> tuple[str, ...]:
    """Return outputs in an order that is the same in every process and depends neither on quality nor on time."""
    return tuple(sorted(outputs, key=lambda output: hashlib.sha256(repr((prompt, output)).encode()).digest()))
