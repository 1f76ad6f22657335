"""Tests of the option `model.peft`: accepted values, and the errors for other values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapting import MODELS, batch, build, lora, step

from rlcore.config import dump_yaml, load_yaml, structure, unstructure
from rlcore.errors import ModelError
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


def refused(spec: Any, given: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        build(spec, given, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", "c_attn, c_fc, c_proj, lm_head"),
        ("llama", "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"),
        ("t5", "k, lm_head, o, q, v, wi, wo"),
    ],
)
@pytest.mark.parametrize("targets", [["query"], "query.*"])
def test_targets_that_match_nothing_are_answered_with_the_models_own(family: str, names: str, targets: Any) -> None:
    said = refused(family, lora(family, target_modules=targets))
    assert said.startswith("model.peft")
    assert "query" in said
    assert said.endswith(f"its linear layers are called {names}")


def test_one_target_that_matches_no_module_causes_a_warning() -> None:
    assert refused("llama", lora(target_modules=["q_proj", "v_porj"])).startswith(
        "model.peft.target_modules: the model has no module 'v_porj'; its linear layers are called down_proj,"
    )
    assert "modules_to_save: the model has no module 'score'" in refused("llama", lora(modules_to_save=["score"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lora(lora_aplha=3), "model.peft.lora_aplha: lora has no such option; did you mean 'lora_alpha'?"),
        ({"type": "ia3", "qqq": 3}, "model.peft.qqq: ia3 has no such option; there are auto_mapping, "),
        ({"type": "lroa"}, "model.peft.type = 'lroa': must be a type of adapter that peft has; did you mean 'lora'?"),
        ({"r": 8}, "model.peft.type = None: must be a type of adapter that peft has; such as lora, ia3"),
        (lora(r=0), "model.peft: peft refuses it: `r` should be a positive integer"),
        (lora(r="8"), "model.peft.r = '8': must be a whole number"),
        (lora(r=8.5), "model.peft.r = 8.5: must be a whole number"),
        (lora(r=True), "model.peft.r = True: must be a whole number"),
        (lora(lora_alpha=None), "model.peft.lora_alpha = None: must be a whole number"),
        (lora(lora_dropout="a"), "model.peft.lora_dropout = 'a': must be a number"),
        (lora(use_rslora="no"), "model.peft.use_rslora = 'no': must be true or false"),
        (lora(target_modules=3), "model.peft.target_modules = 3: must be "),
        (lora(bias=3), "model.peft.bias = 3: must be one of 'none', 'all', 'lora_only'"),
        (lora(rank_pattern=[1]), "model.peft.rank_pattern = [1]: must be a mapping or null"),
        (lora(task_type="CHESS"), "peft refuses it: Invalid task type: 'CHESS'"),
        (lora(task_type="SEQ_CLS"), "model.peft.task_type = 'SEQ_CLS': this model's is 'CAUSAL_LM'; leave it out"),
        (lora(bias="some"), "peft refuses it: Requested bias: some"),
        (lora(init_lora_weights="nought"), "peft refuses it: "),
        (lora(target_modules=["embed_tokens", "input_layernorm"]), "peft refuses it: Target module"),
        ({"type": "adalora", "total_step": 9}, "model.peft of type adalora cannot be trained here: its ranks are"),
        (3, "model.peft = 3: give a mapping such as {type: lora, r: 8}, a peft configuration, or the folder"),
        ("./nowhere", "model.peft = './nowhere': is neither a folder with an adapter nor the hub id of one"),
    ],
)
def test_an_invalid_adapter_option_is_an_error_that_explains_it(given: Any, said: str) -> None:
    assert said in refused("llama", given)


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning", "p_tuning", "cpt", "adaption_prompt"])
def test_an_unsupported_type_of_adapter_is_refused_with_the_supported_ones(kind: str) -> None:
    needs: dict[str, Any] = {"num_virtual_tokens": 4} if kind not in ("cpt", "adaption_prompt") else {}
    if kind == "cpt":
        needs = {"cpt_token_ids": [1], "cpt_mask": [1], "cpt_tokens_type_mask": [1], "task_type": "CAUSAL_LM"}
    said = refused("llama", {"type": kind, **needs})
    assert said.startswith(f"model.peft of type {kind} cannot be trained here: ")
    assert "such as lora, ia3, loha, lokr, oft" in said


def test_a_model_with_virtual_tokens_is_refused() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    wrapped = peft.get_peft_model(make_llama(), config)
    assert "a PeftModelForCausalLM of type prompt_tuning cannot be trained here" in refused(wrapped, None)


def test_layers_cannot_be_unfrozen_beside_an_adapter() -> None:
    said = "unfrozen_layers = 1: the model has an adapter, and only the adapter trains: leave out unfrozen_layers"
    assert said in refused("llama", lora(), unfrozen_layers=1)
    model = make_llama()
    build(model, lora())
    assert said in refused(model, None, unfrozen_layers=1)


def test_untrainable_adapters_of_a_model_in_memory_are_refused_with_the_reason() -> None:
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    merged = peft.get_peft_model(make_llama(), config)
    merged.merge_adapter()
    assert "its adapter is merged into its weights: call unmerge_adapter() before" in refused(merged, None)
    turned_off = make_llama()
    turned_off.add_adapter(config)
    turned_off.disable_adapters()
    assert "its adapter is turned off" in refused(turned_off, None)
    several = peft.get_peft_model(make_llama(), config)
    several.add_adapter("other", peft.LoraConfig(target_modules=["v_proj"]))
    assert "it carries 2 adapters, default, other: keep the one" in refused(several, None)


@pytest.mark.parametrize("layer", ["q_proj", "gate_proj"])
def test_an_adapter_of_another_model_is_refused(layer: str, tmp_path: Path) -> None:
    wider = make_llama(width=32) if layer == "q_proj" else make_llama(layers=3)
    build(wider, lora(target_modules=[layer])).save_pretrained(tmp_path / "other")
    said = refused("llama", str(tmp_path / "other"))
    assert f"model.peft = '{tmp_path / 'other'}': is no adapter for this model: " in said
    assert "4x32 in the folder and 4x16 in the policy" in said or "4x16 in the folder and absent in the policy" in said
    build(make_gpt2(), lora("gpt2")).save_pretrained(tmp_path / "gpt2")
    assert "the model has no module 'c_attn'; its linear layers are called" in refused("llama", str(tmp_path / "gpt2"))
    (tmp_path / "gpt2/adapter_config.json").write_text("{")
    assert "is neither a folder with an adapter nor" in refused("gpt2", str(tmp_path / "gpt2"))


def test_an_adapter_that_names_no_model_cannot_stand_for_one(tmp_path: Path) -> None:
    build(make_t5(), lora("t5")).save_pretrained(tmp_path / "saved")
    about = json.loads((tmp_path / "saved/adapter_config.json").read_text())
    assert about["task_type"] == "SEQ_2_SEQ_LM"
    assert about["base_model_name_or_path"] is None
    said = refused(str(tmp_path / "saved"), None)
    assert "it contains an adapter without the name of its base model: set model.path to that model" in said


def test_a_refused_adapter_option_does_not_change_a_model_in_memory() -> None:
    model = make_gpt2()
    names, flags = list(model.state_dict()), [p.requires_grad for p in model.parameters()]
    refused(model, lora("gpt2", target_modules=["attn.c_attn", "h.1.ln_2"]))
    assert list(model.state_dict()) == names
    assert [p.requires_grad for p in model.parameters()] == flags
    step(build(model, lora("gpt2")))


def test_an_adapter_without_peft_is_an_error_that_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "adapters need the package peft: pip install peft" in refused("llama", lora())
    build("llama", None)  # only this option needs it


@pytest.mark.slow
def test_a_model_without_an_adapter_does_not_import_peft(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = (
        "import sys, torch\n"
        "from rlcore_transformers.models.causal import build_causal_lm\n"
        "from rlcore_transformers.models.model_options import CausalLMConfig\n"
        "from rlcore_testing.small import make_gpt2, make_tokenizer\n"
        "policy = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer(), reference=True)\n"
        "print('peft' in sys.modules)"
    )
    done = python("-c", program)
    assert done.stdout.strip() == "False", done.stderr


def test_a_configuration_object_of_peft_is_used_recorded_and_unchanged() -> None:
    given = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"])
    before = given.to_dict()
    options = structure(CausalLMConfig, {"peft": given})
    one = build("llama", options.peft)
    assert given.to_dict() == before
    recorded = unstructure(options)["peft"]
    assert recorded["peft_type"] == "LORA"
    assert recorded["target_modules"] == ["down_proj", "q_proj"]  # in a fixed order, although peft stores a set
    again = structure(CausalLMConfig, {"peft": recorded})
    assert unstructure(again)["peft"] == recorded
    assert torch.equal(build("llama", again.peft).score(batch()).logprobs, one.score(batch()).logprobs)


def test_the_adapter_option_may_be_set_in_a_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_yaml({"peft": lora(use_dora=True)}))
    options = structure(CausalLMConfig, load_yaml(tmp_path / "run.yaml"))
    assert options.peft == lora(use_dora=True)
    policy = build_causal_lm(MODELS["llama"](), options, tokenizer=make_tokenizer())
    assert re.search("lora_magnitude_vector", " ".join(name for name, _ in policy.module.named_parameters()))
