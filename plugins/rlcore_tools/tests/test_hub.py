"""Tests of pushing a trained model to the hub and loading it back, against a stand-in of the hub's HTTP API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_stand_in import READER, TOKEN, StandIn, stand_in

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SCRIPT = """
import json, sys
import rlcore
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer

options = json.loads(sys.argv[1])
tokenizer, model = make_tokenizer(), make_gpt2()
tokenizer.chat_template = options["template"]
model.generation_config.top_k, model.generation_config.do_sample = 7, True
rlcore.train(
    model, tokenizer=tokenizer, trainer={"name": "sft", "batch_size": 4}, samples=[list(each) for each in SAMPLES],
    eval_prompts=list(PROMPTS[:3]), metric_fn=lambda outputs: {"chars": [float(len(each)) for each in outputs]},
    gen={"max_new_tokens": 3}, loggers=[], run={"name": "walks", "steps": 3, **options["run"]},
)
"""
LOAD = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
revision, loaded = sys.argv[1], {}
for source, options in (("me/walks", {"revision": revision}), ("runs/walks/model", {})):
    model = AutoModelForCausalLM.from_pretrained(source, **options)
    weights = {name: weight.double().sum().item() for name, weight in model.state_dict().items()}
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    loaded[source] = weights, tokenizer.chat_template, GenerationConfig.from_pretrained(source, **options).top_k
assert loaded["me/walks"] == loaded["runs/walks/model"]
assert loaded["me/walks"][1:] == (sys.argv[2], 7)
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


def python(folder: Path, hub: str, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    online = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": token}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=600,
        env={**known, **online, "HF_ENDPOINT": hub, "HF_HOME": str(folder / "hf")},
    )  # fmt: skip


def train(folder: Path, hub: str, *, token: str = TOKEN, **run: Any) -> subprocess.CompletedProcess[str]:
    return python(folder, hub, "-c", SCRIPT, json.dumps({"template": TEMPLATE, "run": run}), token=token)


@pytest.mark.nightly
def test_a_refused_token_loses_nothing_and_the_command_of_the_message_pushes_later(
    tmp_path: Path, hub: StandIn
) -> None:
    refused = train(tmp_path, hub.url, token=READER, push_to_hub="me/walks", hub_private=True)
    assert refused.returncode == 1
    *_, error, kept, later = refused.stderr.splitlines()
    assert error == (
        f"rlcore.errors.HubError: me/walks: the hub ({hub.url}) refused the token: 403 Forbidden (Forbidden: this "
        "token may not write); log in with `hf auth login` as a user who may write to it"
    )
    assert kept == "  Nothing is lost: the trained model is in runs/walks/model. Push it later with:"
    assert later == "  rlcore push runs/walks me/walks --private"
    command = later.split()[1:]
    none = python(tmp_path, hub.url, "-m", "rlcore", *command, token="")
    assert none.stderr.startswith("HubError: me/walks: there is no token for the hub: log in with `hf auth login`, or ")
    wrong = python(tmp_path, hub.url, "-m", "rlcore", *command, token="hf_wrong")
    assert wrong.returncode == 1
    assert "401" in wrong.stderr
    assert "hf_wrong" not in wrong.stderr
    nowhere = python(tmp_path, "http://127.0.0.1:9", "-m", "rlcore", *command)
    assert "me/walks: the hub (http://127.0.0.1:9) cannot be reached, or " in nowhere.stderr
    assert not hub.repos
    for branch in ("main", "v2"):
        pushed = python(tmp_path, hub.url, "-m", "rlcore", *command, *(["--revision", "v2"] if branch == "v2" else []))
        assert pushed.returncode == 0, pushed.stderr
        assert pushed.stdout.startswith(f"pushed runs/walks/model to {hub.url}/me/walks/commit/")
        files = hub.repos["me/walks"][branch]
        folder = tmp_path / "runs" / "walks" / "model"
        assert files == {each.name: each.read_bytes() for each in folder.iterdir()}
        loaded = python(tmp_path, hub.url, "-c", LOAD, branch, TEMPLATE)
        assert loaded.returncode == 0, loaded.stderr
    assert hub.private == {"me/walks": True}
    check_card(files["README.md"].decode(), tmp_path / "runs" / "walks")


def check_card(card: str, run: Path) -> None:
    """Check that the card has the data, algorithm, configuration, curves, samples and versions of the run."""
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["rlcore", "sft"],
    }  # fmt: skip
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert f"1: {lines[0]['loss/total']:.4f}, 2: {lines[1]['loss/total']:.4f}, 3: " in body
    completion = json.loads((run / "completions.jsonl").read_text().splitlines()[0])
    assert f"Prompt:\n\n    {completion['prompt']}\n\nOutput:\n\n    {completion['output'] or ' '}\n" in body
    config = (run / "config.yaml").read_text()
    assert config[config.index("trainer:") :] in body
    for part in (
        "`sft` (rlcore-sft 0.1.0): Supervised fine-tuning",
        "| `samples` | 8 rows |",
        "| rlcore | ",
        "| torch | ",
    ):
        assert part in body, part


@pytest.mark.nightly
def test_a_run_that_ends_pushes_its_model(tmp_path: Path, hub: StandIn) -> None:
    done = train(tmp_path, hub.url, push_to_hub="me/own")
    assert done.returncode == 0, done.stderr
    assert {"model.safetensors", "README.md", "chat_template.jinja", "generation_config.json"} <= {
        *hub.repos["me/own"]["main"]
    }
    assert f"{hub.url}/me/own/commit/" in done.stdout + done.stderr
