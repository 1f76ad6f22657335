"""Rows are given to environments as they were when the prompts were read, and prompts fit their limits."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from env_games import Scripted, make_player, make_policy, read_prompts

from rlcore.errors import DataError
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore_transformers.data.pipelines import PROMPTS

GEN = SamplingConfig(max_new_tokens=8)


class Notes:
    """It says one thing, and notes the rows that it receives."""

    said = "go"
    rows: list[Any] = []  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        self.rows.append((dict(row), seed))
        return self.said

    def step(self, turn: Turn) -> Step:
        return Step(reward=1.0, done=True)


def notes(said: str) -> type[Notes]:
    return type("Notes", (Notes,), {"said": said, "rows": []})


def test_reset_receives_the_same_row_in_the_episode_as_when_the_prompts_were_read() -> None:
    made, policy = notes("go"), make_policy(chat=True)
    player = make_player(made)
    prompts = read_prompts(player, policy, [{"prompt": "a", "level": 1}, {"prompt": "b", "door": "x", "seed": 7}])
    read, made.rows[:] = sorted(made.rows, key=str), []  # each episode is reset in a thread of its own
    player.sampler(Scripted(["x"], ["y"]))(policy, prompts, GEN, row_seeds=[0, 1])  # type: ignore[arg-type]
    assert sorted(made.rows, key=str) == read
    assert [row for row, _ in read] == [{"door": "x"}, {"level": 1}]
    assert read[0][1] == 7


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("said", ["to the north of the house", "north </s> of the house"])
def test_a_prompt_that_is_cut_is_played(said: str, chat: bool) -> None:
    policy, player = make_policy(chat=chat), make_player(notes(said), data={"max_prompt_tokens": 9})
    prompts = read_prompts(player, policy, ["a"])
    assert len(prompts[0].tokens) == 9
    batch: Any = player.sampler(Scripted(["x"]))(policy, prompts, GEN, row_seeds=[0])  # type: ignore[arg-type]
    assert batch.failures == [""]
    assert batch.numbers["episode/done"] == [1.0]


def test_control_text_that_does_not_fit_the_context_as_text_is_refused() -> None:
    policy = make_policy(chat=True)
    said = "</s>" * 20  # 20 tokens as control tokens, 80 as text, and the context has 64
    with pytest.raises(DataError, match=r"prompts\[0\]: has \d+ tokens, since the environment's message has the text"):
        read_prompts(make_player(notes(said)), policy, ["a"])


def test_a_seed_that_is_no_integer_is_refused() -> None:
    policy, player = make_policy(chat=True), make_player(notes("go"))
    for seed in ("7", 1.5, True):
        with pytest.raises(DataError, match=r"prompts\[1\]: the column 'seed' is .*integer; correct it, or rename"):
            read_prompts(player, policy, [{"prompt": "a", "seed": None}, {"prompt": "b", "seed": seed}])


def test_a_pipeline_that_leaves_rows_out_is_refused() -> None:
    def short(*given: Any, **options: Any) -> Any:
        return PROMPTS(*given, **options)[:1]

    policy, player = make_policy(chat=True), make_player(notes("go"))
    with pytest.raises(DataError, match="prompts: the pipeline returned 1 prompts for 2 rows"):
        player.pipeline(short)(["a", "b"], policy.tokenizer, player.config.data, max_length=policy.max_length)


def test_an_episode_without_room_for_a_turn_fails() -> None:
    policy, player = make_policy(), make_player(notes(""))
    (prompt,) = read_prompts(player, policy, ["a"])
    longer = attrs.evolve(prompt, tokens=prompt.tokens * 70)
    sampler: Any = player.sampler(Scripted(["x"], ["y"]))  # type: ignore[arg-type]
    batch = sampler(policy, [prompt, longer], GEN, row_seeds=[0, 1])
    assert batch.failures[0] == ""
    assert "episode 1, turn 0: the prompt has" in batch.failures[1]
    assert [batch.numbers[f"episode/{end}"] for end in ("done", "failed")] == [[1.0, 0.0], [0.0, 1.0]]


def test_an_environment_without_rows_to_train_on_is_named() -> None:
    made = type("Empty", (Notes,), {"rows": staticmethod(lambda split: [])})
    with pytest.raises(DataError, match=r"environment 'Empty': rows\('train'\) returned no rows"):
        make_player(made).rows("train")
    assert make_player(made).rows("eval") == []
