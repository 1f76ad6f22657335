"""Recorded episodes are demonstrations: what is learned are the tokens that the policy sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import torch
from env_games import TEMPLATE, Echo, Scripted, make_player, make_policy, read_prompts
from episode_runs import Fails, run
from test_families import MODELS, byte_tokenizer, tokenizer_of, train  # noqa: F401

import rlcore
from rlcore.errors import DataError
from rlcore.protocols import Step, Turn
from rlcore.settings import DataConfig, SamplingConfig
from rlcore.training.rollout import episode_columns, prompt_columns
from rlcore.types import Episodes, Sample
from rlcore_environments.recorded import build_episodes, read_episodes
from rlcore_testing.small import make_gpt2, make_tokenizer

ALLOWED = torch.ones(32, 32, dtype=torch.bool)
ALLOWED[:, [29, 31]] = False  # the tokens of unknown letters and of padding have no text
GRPO = {"name": "grpo", "rollouts": 8, "num_generations": 4}


def sampled(batches: list[Episodes]) -> list[tuple[list[int], list[bool]]]:
    """Return tokens and chosen tokens of all episodes."""
    return [
        (batch.tokens[i][batch.mask[i]].tolist(), batch.action_mask[i][batch.mask[i]].tolist())
        for batch in batches for i in range(len(batch.tokens))
    ]  # fmt: skip


def read(source: Any, tokenizer: Any, **data: Any) -> list[Sample]:
    return build_episodes(source, tokenizer, DataConfig(**data), max_length=0)


def tokenizer_of_letters(*, chat: bool) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE if chat else None
    return tokenizer


def record(folder: Path, *, chat: bool, **given: Any) -> Path:
    """Train on one round of episodes, and return the file that has all of them."""
    how = {"root": str(folder), "name": "run", "steps": 1, "report": False, "rollouts": "all"}
    result = run(
        folder, tokenizer=tokenizer_of_letters(chat=chat), trainer=GRPO, logit_mask=ALLOWED, run=how,
        eval={"every": 0, "at_end": False}, **given,
    )  # fmt: skip
    return result.run_dir / "rollouts.jsonl"


@pytest.mark.parametrize("chat", [False, True])
def test_the_tokens_and_the_chosen_ones_are_those_that_were_sampled(
    chat: bool,
    played: list[Episodes],
    tmp_path: Path,
) -> None:
    file = record(tmp_path, chat=chat)
    found = read(str(file), tokenizer_of_letters(chat=chat))
    assert [(list(each.tokens), list(each.action_mask)) for each in found] == sampled(played)
    marks = {message.get("truncated", False) for row in read_episodes(file) for message in row["transcript"]}
    assert marks == {True, False}  # turns that were cut off, and turns that the policy ended


@pytest.mark.parametrize("model", MODELS)
def test_so_they_are_with_the_templates_of_families(
    byte_tokenizer: Any,  # noqa: F811
    model: str,
    played: list[Episodes],
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_of(byte_tokenizer, MODELS[model][2])
    result = train(tokenizer, model, "grpo", tmp_path)
    found = read(str(result.run_dir / "rollouts.jsonl"), tokenizer)
    assert [(list(each.tokens), list(each.action_mask)) for each in found] == sampled(played)


def test_a_row_of_ones_own_needs_no_rendered_prompt() -> None:
    transcript = [{"role": "assistant", "content": "ab", "reward": 1.0}, {"role": "user", "content": "c"}]
    row = {"messages": [{"role": "user", "content": "go"}], "transcript": [*transcript, transcript[0]]}
    tokenizer = tokenizer_of_letters(chat=True)
    (sample,) = read([row], tokenizer)
    assert tokenizer.decode(sample.tokens) == "u go.a ab</s>u c.a ab</s>"
    chosen = [token for token, is_chosen in zip(sample.tokens, sample.action_mask, strict=True) if is_chosen]
    assert tokenizer.decode(chosen) == "ab</s>ab</s>"


@pytest.mark.parametrize(("chat", "text"), [(False, "hi goab</s>cd</s>"), (True, "u hi.u  go.a ab</s>u c.a d</s>")])
def test_messages_before_the_first_turn_belong_to_the_prompt(chat: bool, text: str) -> None:
    begin = {"role": "user", "content": " go"}
    turns = [{"role": "assistant", "content": letter, "reward": 1.0} for letter in ("ab", "d")]
    row = {"prompt": "hi", "transcript": [begin, turns[0], {"role": "user", "content": "c"}, turns[1]]}
    tokenizer = tokenizer_of_letters(chat=chat)
    (sample,) = read([row], tokenizer)
    assert tokenizer.decode(sample.tokens) == text
    assert sum(sample.action_mask) == 5


class Shows(Echo):
    """Begins and answers with turns of the assistant that the policy did not write."""

    def reset(self, row: Any, *, seed: int) -> Any:
        return [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "on"},
        ]

    def step(self, turn: Turn) -> Step:
        shown = {"role": "assistant", "content": "x", "reward": 9.0}
        return Step(
            [{"role": "user", "content": "go"}, shown, {"role": "user", "content": "on"}], 1.0, done=turn.index == 1
        )


class Shop(Echo):
    """Its policy may call tools, of which the template writes the names, and it says what its row tells it to say."""

    tools = [{"type": "function", "function": {"name": name}} for name in ("add", "buy")]  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> Any:
        return [{"role": "system", "content": "ab"}, {"role": "user", "content": row["said"]}]


def recorded_of_shop(*, lazy: bool, said: str) -> tuple[Any, dict[str, Any], Episodes]:
    """Play an episode, and return the tokenizer, the row of rollouts.jsonl, and what was played."""
    policy, player = make_policy(chat=True), make_player(Shop, data={"episodes": {"lazy": lazy}})
    policy.tokenizer.chat_template = "{% for tool in tools or [] %}t {{ tool.function.name }}.{% endfor %}" + TEMPLATE
    prompts = read_prompts(player, policy, [{"said": said}])
    sampler: Any = player.sampler(Scripted(["a", "bc", "d"]))  # type: ignore[arg-type]
    batch = sampler(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=[0])
    return policy.tokenizer, json.loads(json.dumps(prompt_columns(prompts[0]) | episode_columns(batch, 0))), batch


@pytest.mark.parametrize("said", ["go", "go </s> on"], ids=["plain", "with control text"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_prompt_that_is_rendered_again_has_the_tools_that_the_policy_could_call(lazy: bool, said: str) -> None:
    tokenizer, row, batch = recorded_of_shop(lazy=lazy, said=said)
    (found,) = read([row], tokenizer)
    assert tokenizer.decode(found.tokens).startswith("t add.t buy.s ab.u go")
    assert [(list(found.tokens), list(found.action_mask))] == sampled([batch])


def test_an_episode_whose_tools_are_not_recorded_is_read_with_those_of_its_row_or_refused() -> None:
    tokenizer, row, batch = recorded_of_shop(lazy=True, said="go")
    del row["transcript"][0]["tools"]
    with pytest.raises(DataError, match=r"samples\[0\]: its policy could call tools whose schemas are not recorded"):
        read([row], tokenizer)
    (found,) = read([row | {"tools": Shop.tools}], tokenizer)
    assert list(found.tokens) == sampled([batch])[0][0]
    with pytest.raises(DataError, match=r"samples\[0\]: 'tools' is 3; it must be a list of JSON schemas"):
        read([row | {"tools": 3}], tokenizer)


@pytest.mark.parametrize("chat", [False, True])
def test_the_first_messages_of_an_environment_that_is_reset_late_are_read(
    chat: bool, played: list[Episodes], tmp_path: Path
) -> None:
    file = record(tmp_path, chat=chat, data={"episodes": {"lazy": True}})
    assert read_episodes(file)[0]["transcript"][0] == {"role": "user", "content": "go"}
    found = read(str(file), tokenizer_of_letters(chat=chat))
    assert [(list(each.tokens), list(each.action_mask)) for each in found] == sampled(played)


def test_turns_of_the_assistant_that_the_policy_did_not_write_are_not_learned(
    played: list[Episodes],
    tmp_path: Path,
) -> None:
    file = record(tmp_path, chat=True, environment=Shows)
    found = read(str(file), tokenizer_of_letters(chat=True))
    assert [(list(each.tokens), list(each.action_mask)) for each in found] == sampled(played)
    assert [row["reward"] for row in read_episodes(file)] == [[1.0, 1.0]] * 8


def test_failed_episodes_are_left_out_with_a_warning(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "seed": seed} for seed in (1, 2)]
    file = record(tmp_path, chat=True, environment=Fails, prompts=rows)
    with structlog.testing.capture_logs() as logs:
        found = read(str(file), tokenizer_of_letters(chat=True))
    structlog.reset_defaults()  # captured values count as configured from then on
    assert len(found) == len(read_episodes(file)) == 4
    assert [(each["failed"], each["of"]) for each in logs if "left out" in each["event"]] == [(4, 8)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "output": "b"}, r"samples\[0\]: .* is no recorded episode; a row of rollouts\.jsonl"),
        ("ab", r"samples\[0\]: 'ab' is no recorded episode"),
        (
            {"prompt": "a", "transcript": [{"role": "user", "content": "b"}]},
            r"samples\[0\]: the transcript has no turn of the policy: a message of the assistant with a reward",
        ),
        ({"prompt": "", "transcript": [{"role": "failure", "content": ""}]}, "has no episode that did not fail"),
        (
            {"prompt": "abcd", "transcript": [{"role": "assistant", "content": "b", "reward": 1.0}]},
            r"samples\[0\]: has no token of the policy within data\.max_sample_tokens",
        ),
    ],
)  # fmt: skip
def test_what_is_no_episode_is_refused(row: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read([row], tokenizer_of_letters(chat=False), max_sample_tokens=3)


@pytest.mark.parametrize("trainer", ["sft", "ilql"])
def test_a_trainer_of_demonstrations_learns_from_recorded_episodes(
    trainer: str,
    played: list[Episodes],
    tmp_path: Path,
) -> None:
    rows = read_episodes(record(tmp_path, chat=True))
    given = {"rewards": [row["reward"] for row in rows]} if trainer == "ilql" else {}
    result = rlcore.train(
        make_gpt2(), tokenizer=tokenizer_of_letters(chat=True), trainer={"name": trainer, "batch_size": 4},
        samples=rows, data={"sample_pipeline": "episodes"}, loggers=[], eval={"every": 0, "at_end": False},
        run={"root": str(tmp_path), "name": "second", "steps": 2, "report": False}, **given,
    )  # fmt: skip
    samples = [(list(each.tokens), list(each.action_mask)) for each in result.run.samples]
    assert samples == sampled(played)
    if trainer == "ilql":
        for reward, batch_row in zip(result.run.data.sample_rewards, played_rewards(played), strict=True):
            assert list(reward.tokens) == batch_row
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["data/tokens"] for line in lines) == sum(sum(chosen) for _, chosen in samples)


def played_rewards(batches: list[Episodes]) -> list[list[float]]:
    return [
        batch["rewards"][i][batch.mask[i]].tolist() for batch in batches for i in range(len(batch.tokens))
    ]  # fmt: skip
