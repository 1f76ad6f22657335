"""Tests of tensor parallelism in one process: the plan of a model, what is refused, and rows of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rlcore.config import structure
from rlcore.errors import ConfigError, ModelError
from rlcore.settings import RunConfig, TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_shard import tensor_parallel as shared_rows
from rlcore_shard.tensor_parallel import build_tp, plan_of
from rlcore_testing.small import SAMPLES, make_gpt2, make_llama, make_tokenizer

SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32,
}  # fmt: skip


def test_the_linear_layers_of_every_block_are_divided_and_the_embeddings_are_not() -> None:
    plan = plan_of(nn.ModuleDict({"policy": make_llama(layers=1), "critic": make_llama(layers=1)}), 2)
    columns = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
    rows = ["self_attn.o_proj", "mlp.down_proj"]
    for model in ("policy", "critic"):
        prefix = f"{model}.model.layers.0."
        own = {name.removeprefix(prefix): style for name, style in plan.linear.items() if name.startswith(prefix)}
        assert own == dict.fromkeys(columns, "colwise") | dict.fromkeys(rows, "rowwise")
    assert len(plan.linear) == 14
    assert not plan.summed


def test_norms_of_the_heads_of_a_process_have_gradients_that_are_summed() -> None:
    plan = plan_of(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)), 2)
    assert plan.summed == {"model.layers.0.self_attn.q_norm", "model.layers.0.self_attn.k_norm"}


def test_tied_embeddings_are_whole_so_they_may_be_tied() -> None:
    model = make_llama()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert len(plan_of(model, 2).linear) == 14


def with_adapter() -> nn.Module:
    model: nn.Module = get_peft_model(make_llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    return model


def with_odd_layer() -> nn.Module:
    model = make_llama()
    model.model.layers[1].mlp.up_proj = nn.Linear(16, 33)
    return model


def with_other_layer() -> nn.Module:
    model = make_llama()
    model.model.layers[0].self_attn.v_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(16, 8)
    return model


def with_shared_weight() -> nn.Module:
    model = make_llama()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    return model


@pytest.mark.parametrize(
    ("model", "world", "message"),
    [
        (make_gpt2, 2, "GPT2LMHeadModel has no plan by which its layers are divided"),
        (make_llama, 4, "num_key_value_heads = 2, which 4 processes do not divide"),
        (make_llama, 3, "num_attention_heads = 4, which 3 processes do not divide"),
        (with_odd_layer, 2, r"layers.1.mlp.up_proj of LlamaForCausalLM has 33 outputs, which 2 processes"),
        (with_shared_weight, 2, "layers.0.mlp.up_proj shares its weight with another layer"),
        (with_adapter, 2, "PeftModel has an adapter, whose layers no plan divides"),
        (with_other_layer, 2, "v_proj of LlamaForCausalLM is of the class NonDynamicallyQuantizableLinear"),
        (lambda: MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2)), 2, "style 'moe_tp_experts'"),
        (lambda: nn.Linear(2, 2), 2, "Linear contains no model of transformers"),
    ],
)
def test_a_model_that_the_processes_cannot_divide_is_refused_with_the_reason(
    model: Any, world: int, message: str
) -> None:
    with pytest.raises(ModelError, match=rf"run.shard = 'tp': .*{message}"):
        plan_of(model(), world)


def test_options_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: Any = SimpleNamespace(mixed_precision="no", world=4)
    with pytest.raises(ConfigError, match=r"run.offload: needs run.shard=fsdp"):
        build_tp(RunConfig(shard="tp", offload=True), ranks)
    with pytest.raises(ConfigError, match="'fp16' is not supported"):
        build_tp(RunConfig(shard="tp"), SimpleNamespace(mixed_precision="fp16", world=4))  # type: ignore[arg-type]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"divides among all processes: set run.shard_within=world"):
        build_tp(RunConfig(shard="tp"), ranks)


def assembled(root: Path, *, dropout: float = 0.0) -> Any:
    settings = {
        "trainer": {"name": "sft", "batch_size": 2, "optimizer": {"lr": 0.1}}, "loggers": [],
        "run": {"root": str(root), "steps": 2, "shard": "tp"},
    }  # fmt: skip
    model = make_llama()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = dropout
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), samples=[list(sample) for sample in SAMPLES])
    return assemble(structure(TrainConfig, settings, where="test"), inputs, "test")


def test_dropout_that_would_differ_between_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"run.shard = 'tp': the model has dropout"):
        assembled(tmp_path, dropout=0.1)


def test_a_gradient_that_is_not_finite_makes_no_step_and_leaves_nothing_behind(tmp_path: Path) -> None:
    parts = assembled(tmp_path)
    try:
        sharding = parts.trainer.updater.sharding
        before = [each.detach().clone() for each in sharding.parameters]
        with sharding.exchanging(True):
            sharding.backward(sum(part.sum() for part in sharding._parts).full_tensor() * torch.nan)
        sharding.step(1.0)
        assert sharding.was_skipped
        assert all(torch.equal(old, new) for old, new in zip(before, sharding.parameters, strict=True))
        assert all(each.grad is None for each in (*sharding.parameters, *sharding._parts))
    finally:
        parts.lock.release()


def test_a_process_keeps_the_outputs_of_its_rows_and_learns_from_the_gradients_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes with 2 and 1 rows: entries 0, 1 and 2, of which the second one's gradient is 5."""
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    others = {0: torch.tensor([[0.0, 0.0], [0.0, 0.0]]), 1: torch.tensor([[5.0, 5.0]])}

    def all_gather(received: Sequence[Tensor], mine: Tensor) -> None:
        received[0].copy_(mine)
        received[1].copy_(torch.nn.functional.pad(others[1].flatten(), (0, len(mine) - 2)))

    monkeypatch.setattr(shared_rows.torch.distributed, "all_gather", all_gather)
    (own,) = shared_rows.own_entries(0, [2, 1], [whole])
    assert own.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    (own * torch.tensor([[1.0], [2.0]])).sum().backward()
    assert whole.grad is not None
    assert whole.grad.tolist() == [[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]
