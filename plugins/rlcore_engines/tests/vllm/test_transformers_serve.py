"""The sampler `openai` with a server that others wrote: `transformers serve`, which takes text only."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import OpenAIConfig
from rlcore_engines.vllm.openai_sampler import OpenAISampler
from rlcore_testing.small import LETTERS, PROMPTS, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

MISSING = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
STARTS_S = 90.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = make_gpt2()
    model.generation_config.do_sample = True  # the server samples only if the model's generation config does
    model.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    output = folder.parent / "server.log"
    with output.open("wb") as file:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=file, stderr=file)
    try:
        until = time.monotonic() + STARTS_S
        while not is_healthy(port):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.nightly
@pytest.mark.skipif(bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING)}")
def test_a_server_of_transformers_is_sampled_from(folder: Path, url: str) -> None:
    """Greedy completions are those of the same model here; stop sequences, seeds and refusals arrive."""
    model = make_gpt2()
    policy = build_causal_lm(model, CausalLMConfig(), tokenizer=make_tokenizer())
    prompts = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in PROMPTS]
    sampler = OpenAISampler(OpenAIConfig(url=url, model=str(folder), concurrency=1))

    greedy = sampler(policy, prompts, SamplingConfig(max_new_tokens=6, temperature=0.0))
    for prompt, row in zip(prompts, greedy.action_tokens, strict=True):
        ids = torch.tensor([prompt.tokens])
        whole = model.generate(ids, do_sample=False, max_new_tokens=6, attention_mask=torch.ones_like(ids))
        expected = whole[0, len(prompt.tokens) :].tolist()
        assert row == [token for token in expected if token < 29 or token == 30]

    sampling = SamplingConfig(max_new_tokens=8, stop_sequences=("a", "e"))
    seeds = list(range(8))
    rows = sampler(policy, prompts, sampling, row_seeds=seeds)
    assert rows.action_tokens == sampler(policy, prompts, sampling, row_seeds=seeds).action_tokens
    assert (
        rows.action_tokens != sampler(policy, prompts, sampling, row_seeds=[seed + 8 for seed in seeds]).action_tokens
    )
    stopped = [row for row in rows.action_tokens if {LETTERS.index("a"), LETTERS.index("e")} & {*row}]
    assert stopped
    assert all(row[-1] in (0, 4) and not {0, 4} & {*row[:-1]} for row in stopped)

    other = OpenAISampler(OpenAIConfig(url=url, model=str(folder), prompts="tokens"))
    with pytest.raises(ConfigError, match=r"token ids as its prompt: status 400, prompt must be a string"):
        other._try(SamplingConfig(), "gen")
