"""Tests of saved policies: plain `transformers` loads them, and every weight is restored exactly."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel
from warm_python import WarmPython

from rlcore.errors import CheckpointError
from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

HEADS: dict[str, dict[str, Any]] = {
    "trunk": {},
    "branch": {"value_layers": 1},
    "critic": {"critic": "copy"},
    "frozen": {"unfrozen_layers": 1},
    "frozen branch": {"unfrozen_layers": 1, "value_layers": 1},
}
BATCH = Trajectories.stack([[3, 4, 5, 6, 7], [8, 9, 10]], [[False, True, True, False, True], [False, False, True]])
PLAIN = """
import json, sys, torch, transformers
folder = sys.argv[1]
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model(torch.tensor([[3, 4, 5, 6, 7]])).logits
assert not any(name.startswith("rlcore") for name in sys.modules)
print(json.dumps({
    "logits": logits[0].double().tolist(), "class": type(model).__name__, "dtype": str(model.dtype),
    "attention": model.config._attn_implementation, "eos": model.generation_config.eos_token_id,
    "top_k": model.generation_config.top_k, "ids": tokenizer("abz").input_ids, "pad": tokenizer.pad_token_id,
    "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
    "generated": model.generate(torch.tensor([[3, 4]]), max_new_tokens=3, do_sample=False)[0].tolist(),
}))
"""


def build(spec: Any, tokenizer: Any, *, value_head: bool = True, **options: Any) -> ModelPolicy:
    return build_causal_lm(spec, CausalLMConfig(**options), tokenizer=tokenizer, value_head=value_head)


def shake(policy: ModelPolicy, seed: int = 9) -> None:
    """Change all trainable weights, as training would."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def scores(policy: ModelPolicy) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        said = policy.score(BATCH)
    return said.logprobs, said.values


def load_plainly(folder: Path, path: Path, warm_python: WarmPython) -> dict[str, Any]:
    (path / "plain.py").write_text(PLAIN)
    done = warm_python.run(["plain.py", str(folder)], cwd=path, environment=os.environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bfloat16"])
def test_plain_transformers_loads_a_saved_policy(
    kind: str, tmp_path: Path, request: Any, char_tokenizer: Any, warm_python: WarmPython
) -> None:
    model = request.getfixturevalue("tiny_gpt2" if kind == "gpt2" else "tiny_llama")
    model.generation_config.eos_token_id = [30, 29]
    model.generation_config.top_k = 7
    if kind == "bfloat16":
        model.to(torch.bfloat16)
    policy = build(model, char_tokenizer)
    assert policy.module.layout.longest > 0
    shake(policy)
    policy.save_pretrained(tmp_path / "saved")
    found = load_plainly(tmp_path / "saved", tmp_path, warm_python)
    with torch.no_grad():
        expected = policy.model(torch.tensor([[3, 4, 5, 6, 7]])).logits[0].double()
    assert torch.allclose(torch.tensor(found.pop("logits")).double(), expected, rtol=1e-6, atol=1e-6)
    assert found.pop("generated")[:2] == [3, 4]
    assert found == {
        "class": type(model).__name__, "dtype": str(model.dtype), "attention": "sdpa", "eos": [30, 29], "top_k": 7,
        "ids": [0, 1, 25], "pad": 31, "tied": kind == "gpt2",
    }  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_folder_holds_plain_transformers_files_and_the_heads(
    name: str, tmp_path: Path, tiny_model: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(copy.deepcopy(tiny_model), char_tokenizer, **HEADS[name])
    policy.save_pretrained(tmp_path)
    tiny_model.save_pretrained(tmp_path / "plain")
    assert "rlcore" not in "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads(
        (tmp_path / "plain" / "config.json").read_text()
    )
    with (
        safe_open(tmp_path / "model.safetensors", "pt") as ours,
        safe_open(tmp_path / "plain" / "model.safetensors", "pt") as plain,
    ):
        assert set(ours.keys()) == set(plain.keys())
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {"model.safetensors", "heads.safetensors"}


@pytest.mark.parametrize("name", HEADS)
def test_all_saved_weights_are_restored_exactly(
    name: str, tmp_path: Path, tiny_model: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(copy.deepcopy(tiny_model), char_tokenizer, **HEADS[name])
    shake(policy)
    policy.save_pretrained(tmp_path)
    fresh = build(copy.deepcopy(tiny_model), char_tokenizer, **HEADS[name])
    reference = [id(p) for p in fresh.module.parameters()]
    assert not torch.equal(scores(fresh)[0], scores(policy)[0])
    fresh.load_pretrained(tmp_path)
    assert torch.equal(scores(fresh)[0], scores(policy)[0])
    assert torch.equal(scores(fresh)[1], scores(policy)[1])
    expected = policy.module.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in fresh.module.state_dict().items())
    assert [id(p) for p in fresh.module.parameters()] == reference  # optimizers hold references to these tensors


@pytest.mark.parametrize("name", HEADS)
def test_a_new_run_takes_up_the_value_function_saved_with_its_model(
    name: str, tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(tiny_gpt2, char_tokenizer, **HEADS[name])
    shake(policy)
    policy.save_pretrained(tmp_path)
    again = build(str(tmp_path), char_tokenizer, **HEADS[name])
    assert torch.equal(scores(again)[1], scores(policy)[1])


def test_a_value_function_of_another_make_is_left_with_a_warning(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tiny_gpt2, char_tokenizer).save_pretrained(tmp_path)
    build(str(tmp_path), char_tokenizer, value_layers=1)
    assert "do not fit and are not loaded" in capsys.readouterr().err


def test_a_reward_model_used_as_critic_is_restored_from_disk(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    config = copy.deepcopy(tiny_gpt2.config)
    config.num_labels = 1
    hf.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "judge")
    options = {"critic": str(tmp_path / "judge")}
    policy = build(copy.deepcopy(tiny_gpt2), char_tokenizer, **options)
    shake(policy)
    policy.save_pretrained(tmp_path / "saved")
    fresh = build(copy.deepcopy(tiny_gpt2), char_tokenizer, **options)
    fresh.load_pretrained(tmp_path / "saved")
    assert torch.equal(scores(fresh)[1], scores(policy)[1])


def test_bfloat16_weights_are_restored_exactly(
    tmp_path: Path, tiny_llama: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(copy.deepcopy(tiny_llama).to(torch.bfloat16), char_tokenizer)
    shake(policy)
    policy.save_pretrained(tmp_path)
    fresh = build(copy.deepcopy(tiny_llama).to(torch.bfloat16), char_tokenizer)
    fresh.load_pretrained(tmp_path)
    assert torch.equal(scores(fresh)[0], scores(policy)[0])
    assert {w.dtype for w in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_a_frozen_trunk_is_not_saved_twice(tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    build(tiny_gpt2, char_tokenizer, value_layers=1).save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "heads.safetensors"))
    assert not any("wte" in name or "wpe" in name or ".h.0." in name for name in names)
    assert any(".h.1." in name for name in names)


def test_saving_without_heads_removes_heads_saved_before(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    build(copy.deepcopy(tiny_gpt2), char_tokenizer).save_pretrained(tmp_path)
    plain = build(tiny_gpt2, char_tokenizer, value_head=False)
    plain.save_pretrained(tmp_path)
    assert not (tmp_path / "heads.safetensors").exists()
    plain.load_pretrained(tmp_path)


@pytest.mark.parametrize(("saved", "wanted"), [("none", "trunk"), ("trunk", "none"), ("trunk", "branch")])
def test_loading_weights_saved_with_other_heads_is_an_error(
    saved: str, wanted: str, tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    def policy(kind: str) -> ModelPolicy:
        options = HEADS.get(kind, {})
        return build(copy.deepcopy(tiny_gpt2), char_tokenizer, value_head=kind != "none", **options)

    policy(saved).save_pretrained(tmp_path)
    untouched = policy(wanted)
    before = copy.deepcopy(untouched.module.state_dict())
    with pytest.raises(CheckpointError, match=r"its heads are not this policy's: .* absent in the"):
        untouched.load_pretrained(tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in untouched.module.state_dict().items())


def test_loading_the_weights_of_another_model_is_an_error(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    config = copy.deepcopy(tiny_gpt2.config)
    config.n_embd = 32
    build(config, char_tokenizer).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="its weights are not this policy's"):
        build(tiny_gpt2, char_tokenizer).load_pretrained(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        build(tiny_gpt2, char_tokenizer).load_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.safetensors", "heads.safetensors"])
def test_a_damaged_file_is_an_error(name: str, tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    policy = build(tiny_gpt2, char_tokenizer)
    policy.save_pretrained(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        policy.load_pretrained(tmp_path)


def test_a_file_that_lacks_weights_is_an_error(tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    from safetensors.torch import save_file

    policy = build(tiny_gpt2, char_tokenizer)
    policy.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("transformer.ln_f.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing weights transformer\.ln_f\.weight"):
        policy.load_pretrained(tmp_path)


def test_saving_prints_nothing_and_does_not_change_the_policy(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any, capfd: Any
) -> None:
    policy = build(tiny_gpt2, char_tokenizer)
    capfd.readouterr()
    before = scores(policy)
    policy.save_pretrained(tmp_path)
    policy.load_pretrained(tmp_path)
    assert torch.equal(scores(policy)[0], before[0])
    assert policy.module.layout.longest > 0
    assert policy.model.config._attn_implementation == "rlcore_packed"
    assert capfd.readouterr() == ("", "")
