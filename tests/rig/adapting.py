"""Policies with adapters, a batch to score, and a few training steps, for the tests of adapters."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from rlcore.types import Trajectories
from rlcore_ilql.config import q_heads
from rlcore_testing.small import make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore_transformers.models.policy import ModelPolicy

MODELS = {"gpt2": make_gpt2, "llama": make_llama, "t5": make_t5, "bart": make_bart}
TARGETS = {
    "gpt2": ["c_attn", "c_fc"], "llama": ["q_proj", "down_proj"], "t5": ["q", "wi"], "bart": ["q_proj", "fc1"],
}  # fmt: skip


def lora(family: str = "llama", **options: Any) -> dict[str, Any]:
    return {"type": "lora", "r": 4, "lora_alpha": 16, "target_modules": TARGETS[family], **options}


def build(spec: Any, peft: Any, *, num: int = 0, value_head: bool = True, **options: Any) -> ModelPolicy:
    """Build a policy with a reference from a model, or from the name of a tiny model family."""
    spec = MODELS[spec]() if isinstance(spec, str) and spec in MODELS else spec
    asked = {"tokenizer": make_tokenizer(), "value_head": value_head, "reference": True, "heads": q_heads(num)}
    if isinstance(spec, PreTrainedModel) and spec.config.is_encoder_decoder:
        return build_seq2seq_lm(spec, Seq2SeqLMConfig(peft=peft, **options), **asked)
    return build_causal_lm(spec, CausalLMConfig(peft=peft, **options), **asked)


def batch() -> Trajectories:
    tokens = torch.randint(0, 30, (4, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([[9], [6], [7], [4]])
    chosen = mask & (torch.arange(9) > 2)
    return Trajectories(tokens, mask, chosen, torch.ones(4, dtype=torch.bool))


def step(policy: ModelPolicy, steps: int = 3) -> list[float]:
    """Increase the batch's log-probs and values by one step; return the losses."""
    trained = [p for p in policy.module.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-2, eps=1e-3), []
    for _ in range(steps):
        said = policy.score(batch())
        loss = -said.logprobs.mean() - (0 if said.values is None else said.values.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name
