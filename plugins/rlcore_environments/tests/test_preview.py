"""`rlcore preview` shows the prompts with the environment's first messages, and an episode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from env_games import TEMPLATE, Echo, make_player, make_policy, read_prompts

from rlcore.cli import main
from rlcore.protocols import Step, Turn
from rlcore_testing.small import make_gpt2, make_tokenizer


def test_a_preview_shows_an_episode_with_the_policys_tokens(tmp_path: Path, capsys: object) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    make_gpt2().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model: {{path: {tmp_path / 'model'}}}\ntrainer: {{name: grpo}}\n"
        "data: {environment: 'env_games:Echo', prompts: [ab, cd]}\n"
    )
    capsys.readouterr()  # type: ignore[attr-defined]
    assert main(["preview", str(file), "--json"]) == 0
    prompts, episode = json.loads(capsys.readouterr().out)["sources"]  # type: ignore[attr-defined]
    assert "".join(prompts["rows"][0]["sequences"][0]["texts"]) == "u ab.u go.a "
    (row,) = episode["rows"]
    texts, trained = row["sequences"][0]["texts"], row["sequences"][0]["trained"]
    chosen = "".join(text for text, is_chosen in zip(texts, trained, strict=True) if is_chosen)
    assert chosen.count("</s>") == 3
    assert row["values"]["1 user"] == "you ."


@pytest.mark.parametrize(("own", "given", "shown"), [(0, 2, 2), (1, 0, 1), (1, 2, 2), (9, 0, 3), (0, 9, 3)])
def test_an_example_has_no_more_turns_than_an_episode_of_the_run(own: int, given: int, shown: int) -> None:
    class Endless(Echo):
        max_turns = own

        def step(self, turn: Turn) -> Step:
            return Step("on")

    policy, player = make_policy(chat=True), make_player(Endless, data={"episodes": {"max_turns": given}})
    (prompt,) = read_prompts(player, policy, ["a"])
    _, transcript = player.example(prompt, policy.tokenizer)
    assert sum(each["role"] == "assistant" for each in transcript) == shown
