"""Episodes without a chat template are shown by speaker, although their text is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from env_games import Echo

import rlcore
from rlcore.loggers import display_row
from rlcore_testing.small import make_gpt2, make_tokenizer


@pytest.mark.parametrize("lazy", [False, True])
def test_turns_without_a_chat_template_are_shown_with_their_speakers(lazy: bool, tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), trainer={"name": "reinforce", "rollouts": 4}, environment=Echo, prompts=["ab"] * 4, loggers=[],
        gen={"max_new_tokens": 3}, tokenizer=make_tokenizer(), data={"episodes": {"lazy": lazy}},
        run={"root": str(tmp_path), "name": "run", "steps": 1, "report": False},
    )  # fmt: skip
    for name in ("rollouts.jsonl", "completions.jsonl"):
        row = json.loads((result.run_dir / name).read_text().splitlines()[0])
        opening = [row["transcript"].pop(0)["content"]] if lazy else []
        assert opening == (["go"] if lazy else [])
        assert row["output"] == "".join([*opening, *(each["content"] for each in row["transcript"])])
        lines = display_row(row)["output"].splitlines()
        assert [line.partition(" ")[0].rstrip(":") for line in lines] == ["assistant", "user"] * 3
        assert [line.partition(": ")[2] for line in lines] == [each["content"] for each in row["transcript"]]
