"""Tests of weights in 4 and 8 bits beneath an adapter, on the CPU, which bitsandbytes supports too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.errors import ModelError
from rlcore_testing.small import SAMPLES, make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

LORA = {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]}
installed = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def train(folder: Path, model: str, bits: str, *, steps: int, **run: Any) -> rlcore.Result:
    return rlcore.train(
        {"path": model, "quantization": bits, "peft": LORA}, samples=[list(sample) for sample in SAMPLES],
        trainer={"name": "sft", "batch_size": 8, "optimizer": {"lr": 3e-2}}, loggers=[],
        run={"root": str(folder), "name": "run", "steps": steps, **run},
    )  # fmt: skip


@installed
@pytest.mark.slow
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_an_adapter_learns_on_quantised_weights_resumes_and_is_merged_into_the_whole_ones(
    tmp_path: Path, bits: str
) -> None:
    base = make_llama()
    base.save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    train(tmp_path, str(tmp_path / "base"), bits, steps=3)
    result = train(tmp_path, str(tmp_path / "base"), bits, steps=6, resume="auto")
    layer = result.policy.module.model.model.layers[0].self_attn.q_proj.base_layer
    assert type(layer).__module__.startswith("bitsandbytes")
    losses = [json.loads(line)["loss/total"] for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
    merged = AutoModelForCausalLM.from_pretrained(result.run_dir / "model").state_dict()
    changed = [name for name, weight in base.state_dict().items() if not weight.equal(merged[name])]
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "quantised weights cannot train: set model.peft"),
        ({"peft": LORA}, "needs a hub id or a folder to load"),
    ],
)
def test_options_that_contradict_quantisation_are_refused(options: dict[str, Any], message: str) -> None:
    config = CausalLMConfig(quantization="4bit", **options)
    with pytest.raises(ModelError, match=rf"model.quantization = '4bit': {message}"):
        build_causal_lm(make_llama(), config, tokenizer=make_tokenizer())


def test_a_machine_without_bitsandbytes_or_a_device_for_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_llama().save_pretrained(tmp_path)
    config = CausalLMConfig(quantization="8bit", peft=LORA)

    def unsupported(*, raise_exception: bool) -> None:
        raise RuntimeError("no supported devices: cpu, cuda\nmore")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs bitsandbytes, which is not installed: pip install bitsandbytes"):
        build_causal_lm(str(tmp_path), config, tokenizer=make_tokenizer())
    monkeypatch.undo()
    pytest.importorskip("bitsandbytes", reason="the check of devices is that of bitsandbytes")
    monkeypatch.setattr("transformers.integrations.bitsandbytes.validate_bnb_backend_availability", unsupported)
    with pytest.raises(ModelError, match=r"does not support this machine's devices: no supported devices: cpu, cuda$"):
        build_causal_lm(str(tmp_path), config, tokenizer=make_tokenizer())
