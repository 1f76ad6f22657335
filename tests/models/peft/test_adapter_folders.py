"""Tests of saved adapters: checkpoints are small and exact, exports are complete and loadable by other libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapting import MODELS, TARGETS, assert_equal, batch, build, lora, step, weights
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlcore.errors import CheckpointError, ModelError
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.peft.adapters import Adapters
from rlcore_transformers.models.save_load import load_start

IA3 = {"type": "ia3", "target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}


@pytest.fixture
def base(tmp_path: Path) -> str:
    make_llama().save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=batch().tokens).logits


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("options", [{}, {"use_dora": True, "modules_to_save": ["lm_head"]}])
def test_a_saved_adapter_is_restored_bit_for_bit(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    policy, other = (build(family, lora(family, **options), num=2) for _ in range(2))
    step(policy)
    policy.save_pretrained(tmp_path / "saved")
    assert not torch.equal(other.score(batch()).logprobs, policy.score(batch()).logprobs)
    held = {id(p) for p in other.module.parameters()}
    other.load_pretrained(tmp_path / "saved")
    assert_equal(weights(other.module), weights(policy.module))
    assert {id(p) for p in other.module.parameters()} == held  # optimizers may hold references to these tensors


@pytest.mark.parametrize("options", [lora(), IA3])
def test_a_checkpoint_of_an_adapter_holds_only_trained_weights(
    options: dict[str, Any], base: str, tmp_path: Path
) -> None:
    policy = build(base, options)
    step(policy)
    policy.save_pretrained(tmp_path / "saved")
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    tokenizer = {path.name for path in Path(base).iterdir() if "token" in path.name}
    own = {"adapter_config.json", "adapter_model.safetensors", "generation_config.json", "heads.safetensors"}
    assert files == own | tokenizer
    saved = load_file(tmp_path / "saved/adapter_model.safetensors")
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    assert sum(weight.numel() for weight in saved.values()) == sum(p.numel() for p in trained)
    assert json.loads((tmp_path / "saved/adapter_config.json").read_text())["base_model_name_or_path"] == base


def test_the_same_adapter_is_written_the_same_in_every_process(base: str, tmp_path: Path) -> None:
    build(base, lora(target_modules="all-linear")).save_pretrained(tmp_path / "saved")
    targets = json.loads((tmp_path / "saved/adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)
    assert len(targets) > 6


def test_peft_loads_a_checkpoint(base: str, tmp_path: Path) -> None:
    policy = build(base, lora(modules_to_save=["lm_head"]))
    step(policy)
    policy.save_pretrained(tmp_path / "saved")
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "saved").eval()
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=1e-6, rtol=0)
    auto = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(logits(auto), logits(loaded))


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(
    "options",
    [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"target_modules": "all-linear"}, {"bias": "all"}],
)
def test_an_export_is_a_plain_model_with_the_same_outputs(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    policy = build(family, lora(family, **options))
    step(policy)
    before, said = weights(policy.module), policy.score(batch()).logprobs
    policy.export(tmp_path / "whole")
    assert_equal(weights(policy.module), before)
    assert torch.equal(policy.score(batch()).logprobs, said)
    plain = type(policy.model).from_pretrained(tmp_path / "whole")
    assert not any("lora" in name for name in plain.state_dict())
    again = build(plain, None).score(batch()).logprobs
    torch.testing.assert_close(again, said, atol=2e-5, rtol=0)
    assert (tmp_path / "whole/adapter/adapter_config.json").exists()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_adapters_of_embeddings_are_merged_where_they_are_and_not_where_these_are_tied(
    family: str, tmp_path: Path
) -> None:
    name = {"gpt2": "wte", "llama": "embed_tokens"}[family]
    policy = build(family, lora(family, target_modules=[name, *TARGETS[family]]))
    step(policy)
    policy.export(tmp_path / "whole")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(logits(plain), logits(policy.model), atol=2e-5, rtol=0)
    assert not json.loads((tmp_path / "whole/config.json").read_text())["tie_word_embeddings"]  # for other libraries


@pytest.mark.slow
def test_an_export_is_loaded_without_peft(base: str, tmp_path: Path) -> None:
    policy = build(base, lora())
    step(policy)
    policy.export(tmp_path / "whole")
    program = (
        "import sys; sys.modules['peft'] = None\n"
        "import transformers as hf; model = hf.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(float(model(input_ids=__import__('torch').tensor([[1, 2, 3]])).logits.double().sum()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "whole")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    with torch.no_grad():
        expected = float(policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits.double().sum())
    assert float(done.stdout) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("place", ["saved", "whole"])
def test_value_heads_are_restored_from_a_checkpoint_and_from_an_export(place: str, base: str, tmp_path: Path) -> None:
    policy = build(base, lora(), num=2)
    step(policy)
    policy.save_pretrained(tmp_path / "saved")
    policy.export(tmp_path / "whole")
    torch.manual_seed(5)
    policies = [build(str(tmp_path / place), None, num=2)]
    if place == "saved":
        policies.append(build(base, str(tmp_path / place), num=2))
    for other in policies:
        torch.testing.assert_close(other.score(batch()).values, policy.score(batch()).values, atol=2e-5, rtol=0)
        assert_equal(weights(other.module.q_heads), weights(policy.module.q_heads))


def test_training_can_start_from_the_folder_of_an_adapter(base: str, tmp_path: Path) -> None:
    policy = build(base, lora())
    step(policy)
    policy.save_pretrained(tmp_path / "saved")
    said = policy.score(batch()).logprobs.detach()
    (tmp_path / "bare").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((tmp_path / "saved" / name).read_bytes())
    others = [build(base, str(tmp_path / "saved")), build(str(tmp_path / "saved"), None)]
    others.append(build_causal_lm(str(tmp_path / "bare"), CausalLMConfig(), reference=True))  # the base's tokenizer
    for other in others:
        assert torch.equal(other.score(batch()).logprobs, said)
        step(other)
        assert torch.equal(other.reference_score(batch()).logprobs, said)  # the initial adapter, not the base model
        assert not torch.equal(other.score(batch()).logprobs, said)


def test_an_adapter_that_transformers_brings_with_a_model_trains(base: str) -> None:
    trained = build(base, lora())
    step(trained)
    trained.save_pretrained(Path(base))  # a folder with a model and an adapter for it
    (Path(base) / "heads.safetensors").unlink()
    policy = build(base, None)
    assert torch.equal(policy.score(batch()).logprobs, trained.score(batch()).logprobs)
    assert sum(p.numel() for p in policy.model.parameters() if p.requires_grad) == sum(
        p.numel() for p in trained.model.parameters() if p.requires_grad
    )


def test_the_starting_weights_of_a_model_in_memory_are_saved_without_the_adapter(tmp_path: Path) -> None:
    model = make_llama()
    policy = build(model, lora(init_lora_weights=False))
    before = weights(model)
    policy.save_start(tmp_path / "start")
    assert_equal(weights(model), before)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "start")
    assert torch.equal(logits(plain), logits(make_llama()))  # below the adapter
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    load_start(tmp_path / "start", model)
    assert_equal(weights(model), before)


def test_an_adapter_that_changes_the_base_weights_of_a_nameless_model_is_refused(tmp_path: Path) -> None:
    policy = build("llama", lora(init_lora_weights="pissa"))
    with pytest.raises(ModelError, match="which a resumed run could not restore because the model has no name"):
        policy.save_start(tmp_path / "start")


def test_a_checkpoint_of_another_form_is_refused_and_nothing_taken(tmp_path: Path) -> None:
    policy, other = build("llama", lora()), build("llama", lora(r=2))
    step(other)
    other.save_pretrained(tmp_path / "saved")
    before = weights(policy.module)
    with pytest.raises(CheckpointError, match=r"its adapter weights are not this policy's: .* is 2x\d+ in the folder"):
        policy.load_pretrained(tmp_path / "saved")
    (tmp_path / "saved/adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="the adapter cannot be read"):
        policy.load_pretrained(tmp_path / "saved")
    assert_equal(weights(policy.module), before)


def test_no_more_than_one_copy_is_made_to_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("llama", lora())
    copied: list[torch.Tensor] = []
    original = torch.Tensor.to

    def note(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        made = original(self, *args, **options)
        if options.get("copy"):
            copied.append(made)
        return made

    monkeypatch.setattr(torch.Tensor, "to", note)
    policy.export(tmp_path / "whole")
    size = sum(tensor.numel() for tensor in (*policy.model.parameters(), *policy.model.buffers()))
    assert sum(tensor.numel() for tensor in copied) == size
    assert all(tensor.device.type == "cpu" for tensor in copied)
    assert vocabulary_size(policy.model) == 32
    assert isinstance(policy.reference, Adapters)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("options", [{}, {"use_dora": True, "modules_to_save": ["lm_head"]}])
def test_weights_for_other_samplers_are_those_that_an_export_contains(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    policy = build(family, lora(family, **options))
    step(policy)
    before = {name: each.clone() for name, each in weights(policy.module).items()}
    policy.export(tmp_path)
    exported = load_file(tmp_path / "model.safetensors")
    assert_equal(
        dict(policy.weights()), {name: exported[name] for name in exported if name != "final_logits_bias"}
    )  # a buffer
    assert_equal(weights(policy.module), before)
