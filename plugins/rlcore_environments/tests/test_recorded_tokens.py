"""Recorded token ids: what is learned from an episode is exactly what was sampled in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from env_games import Echo
from episode_runs import run
from test_recorded import GRPO, read, sampled, tokenizer_of_letters

import rlcore
from rlcore.errors import DataError
from rlcore.types import Episodes
from rlcore_environments.recorded import read_episodes
from rlcore_testing.small import make_gpt2, make_tokenizer


def record(folder: Path, *, chat: bool, lazy: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a round of episodes whose turns a text may end, and in which any token is sampled."""
    result = run(
        folder, tokenizer=tokenizer_of_letters(chat=chat), trainer=GRPO,
        data={"episodes": {"record_tokens": True, "lazy": lazy}}, eval={"every": 0, "at_end": False},
        gen={"max_new_tokens": 3, "stop_sequences": list("abcdefgh")},
        run={"root": str(folder), "name": "run", "steps": 1, "report": False, "rollouts": "all"},
    )  # fmt: skip
    return read_episodes(str(result.run_dir / "rollouts.jsonl"))


def without_tokens(row: dict[str, Any]) -> dict[str, Any]:
    first, *others = row["transcript"]
    return {**row, "transcript": [{k: v for k, v in first.items() if k != "tokens"}, *others]}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_recorded_token_ids_are_learned_where_their_texts_have_others(
    chat: bool, lazy: bool, played: list[Episodes], tmp_path: Path
) -> None:
    rows, tokenizer = record(tmp_path, chat=chat, lazy=lazy), tokenizer_of_letters(chat=chat)
    found = [(list(each.tokens), list(each.action_mask)) for each in read(rows, tokenizer)]
    assert found == sampled(played)
    again = [(list(each.tokens), list(each.action_mask)) for each in read(list(map(without_tokens, rows)), tokenizer)]
    assert again != found  # stop strings and tokens without a text are not in the texts
    assert all(mine[1].count(True) for mine in again)


@pytest.mark.parametrize("trainer", ["sft", "ilql"])
def test_a_trainer_of_demonstrations_learns_from_the_tokens_that_were_sampled(
    trainer: str, played: list[Episodes], tmp_path: Path
) -> None:
    rows = record(tmp_path, chat=True)
    given = {"rewards": [row["reward"] for row in rows]} if trainer == "ilql" else {}
    result = rlcore.train(
        make_gpt2(), tokenizer=tokenizer_of_letters(chat=True), trainer={"name": trainer, "batch_size": 4},
        samples=rows, data={"sample_pipeline": "episodes"}, loggers=[], eval={"every": 0, "at_end": False},
        run={"root": str(tmp_path), "name": "second", "steps": 2, "report": False}, **given,
    )  # fmt: skip
    assert [(list(each.tokens), list(each.action_mask)) for each in result.run.samples] == sampled(played)
    if trainer == "ilql":
        (batch,) = played
        expected = [batch["rewards"][i][batch.mask[i]].tolist() for i in range(len(batch.tokens))]
        assert [list(each.tokens) for each in result.run.data.sample_rewards] == expected


def test_token_ids_of_another_tokenizer_are_not_used_and_a_warning_says_so(tmp_path: Path) -> None:
    rows = record(tmp_path, chat=True)
    other = tokenizer_of_letters(chat=True)
    for row in rows:
        first = row["transcript"][0]
        first["tokens"] = [[1000 + token for token in each] for each in first["tokens"]]
    moved = [{"prompt": "b", "transcript": [{"role": "assistant", "content": "ab", "reward": 1, "tokens": [[1], [7]]}]}]
    for given in (rows, moved):
        with structlog.testing.capture_logs() as logs:
            found = read(given, other)
        structlog.reset_defaults()  # captured values count as configured from then on
        assert [each.tokens for each in found] == [
            each.tokens for each in read(list(map(without_tokens, given)), other)
        ]
        warned = [each for each in logs if "another tokenizer" in each["event"]]
        assert [(each["episodes"], each["of"]) for each in warned] == [(len(given), len(given))]


def test_token_ids_are_recorded_if_asked_for_only(tmp_path: Path) -> None:
    result = run(tmp_path, trainer=GRPO, environment=Echo)
    for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines():
        assert "tokens" not in json.loads(line)["transcript"][0]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (3, r"samples\[0\]: 'tokens' is 3; it must be a list of lists of token ids"),
        ([[1, -2]], "must be a list of lists of token ids"),
        ([[1], []], "must be a list of lists of token ids"),
        ([[True]], "must be a list of lists of token ids"),
        ([[1], [2], [3], [4]], r"'tokens' has 4 lists, .* and the transcript has 1 turns"),
    ],
)
def test_recorded_token_ids_of_another_form_are_refused(tokens: Any, message: str) -> None:
    row = {"prompt": "a", "transcript": [{"role": "assistant", "content": "b", "reward": 1.0, "tokens": tokens}]}
    with pytest.raises(DataError, match=message):
        read([row], make_tokenizer())
