from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore_rewards.config import JudgeConfig
from rlcore_rewards.judge import Judge
from rlcore_testing.small import make_llama

COMMAND = Path(sys.executable).with_name("transformers")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of digits and letters, so that a model from random weights answers with numbers too."""
    backend = Tokenizer(
        models.WordLevel(
            {token: i for i, token in enumerate([*"0123456789abcdefghijklmnopqrst", "<end>", "?"])}, unk_token="?"
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<end>", unk_token="?", chat_template=template
    )


@pytest.mark.nightly
@pytest.mark.skipif(not COMMAND.exists(), reason="the command of transformers is not installed")
def test_transformers_serve_judges_as_the_model_itself_does(tmp_path: Path) -> None:
    tokenizer, model = make_tokenizer(), make_llama()
    model.config.max_position_embeddings = 256
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = tokenizer.eos_token_id
    folder = str(tmp_path / "judge")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(COMMAND), "serve", folder, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < until
            time.sleep(0.2)
        outputs = ["abc", "dd", "t0", "q", "rs7"]
        judge = Judge(JudgeConfig(
            url=f"http://127.0.0.1:{port}/v1", model=folder, rubric="rate {output}", pattern=r"(\d)", high=9.0,
            max_tokens=12, max_failed=1.0, retries=0,
        ))  # fmt: skip
        rewards = asyncio.run(judge(outputs=outputs, prompts=[""] * 5))
    finally:
        server.terminate()
        server.wait(300)
    expected = []
    for output in outputs:
        ids = torch.tensor([tokenizer(f"rate {output}").input_ids])
        text = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :])
        digits = re.findall(r"\d", text)
        expected.append(int(digits[-1]) / 9 if digits else None)
    assert rewards == expected
    assert any(reward is not None for reward in rewards)
