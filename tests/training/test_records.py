"""Tests of what the files of a run tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rlcore
from rlcore_testing.small import make_gpt2, make_tokenizer


def test_no_file_of_a_run_holds_a_secret_and_the_run_resumes(tmp_path: Path) -> None:
    def train(**run: Any) -> Any:
        return rlcore.train(
            make_gpt2(), trainer={"name": "sft", "batch_size": 2}, tokenizer=make_tokenizer(), samples=["ab", "cd"],
            gen={"stop_sequences": ["ftp://me:s3cret@host"]}, loggers=[],
            run={"root": str(tmp_path), "name": "run", **run},
        )  # fmt: skip

    train(steps=1)
    assert train(steps=2, resume="auto").run.step == 2
    texts = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert sum(b"ftp://<hidden>@host" in text for text in texts) == 4  # config.yaml, two manifests, the model card
    assert not any(b"s3cret" in text for text in texts)
