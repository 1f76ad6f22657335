"""Tests of logit maps: outputs without running the head equal those with it, and unsupported heads are run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny
import torch
import transformers as hf
from seq2seq_making import CONFIGS, dialogues
from seq2seq_making import build as build_seq2seq
from seq2seq_making import make as make_seq2seq
from tiny import make_causal
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.types import PolicyOutputs, Trajectories
from rlcore_ilql.config import q_heads
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.forward import predict
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.policy_parts import find_logit_map
from rlcore_transformers.models.speed import TechniqueRefused, fused_logprobs
from rlcore_transformers.models.speed.fused_logprobs import LogitMap, whole_scores

SHAPE = tiny.SHAPE | {"num_hidden_layers": 2}
FAMILIES = {
    "gpt2": (hf.GPT2Config(**tiny.GPT), LogitMap()),
    "llama": (hf.LlamaConfig(**SHAPE), LogitMap()),
    "gemma2": (hf.Gemma2Config(**SHAPE, final_logit_softcapping=3.0), LogitMap(cap=3.0)),
    "cohere": (hf.CohereConfig(**SHAPE, logit_scale=0.25), LogitMap(scale=0.25)),
    "granite": (hf.GraniteConfig(**SHAPE, logits_scaling=4.0), LogitMap(scale=0.25)),
    "phi, bias": (hf.PhiConfig(**SHAPE), LogitMap()),
    "gpt_neox": (hf.GPTNeoXConfig(**SHAPE), LogitMap()),
    "opt": (hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0), LogitMap()),
}


def make(name: str) -> PreTrainedModel:
    if name in FAMILIES:
        return make_causal(FAMILIES[name][0])
    return make_seq2seq(name)


def build(model: PreTrainedModel, tokenizer: Any, **wanted: Any) -> ModelPolicy:
    torch.manual_seed(1)
    wanted = {"value_head": True, **wanted}
    if model.config.is_encoder_decoder:
        return build_seq2seq(model, tokenizer, **wanted)
    options = {name: wanted.pop(name) for name in list(wanted) if name not in ("value_head", "heads", "reference")}
    return build_causal_lm(model, CausalLMConfig(**options), tokenizer=tokenizer, **wanted)


def learn(policy: ModelPolicy, batch: Trajectories) -> tuple[PolicyOutputs, dict[str, Tensor]]:
    """Score a batch, and return the outputs and the gradients of a loss over all of them."""
    policy.module.zero_grad()
    said = policy.score(batch, entropy=True)
    assert said.values is not None
    assert said.entropy is not None
    slopes = torch.linspace(-1, 2, said.logprobs.numel()).reshape(said.logprobs.shape)
    loss = (said.logprobs * slopes + said.entropy * slopes.flip(0) + said.values).sum()
    if said.heads:
        loss = loss + (said.heads["q_values"] * slopes + said.heads["q_logprobs"] * slopes.flip(1)).sum()
    loss.backward()
    return said, {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}


def assert_same(got: tuple[PolicyOutputs, Any], due: tuple[PolicyOutputs, Any], tolerance: float = 1e-5) -> None:
    assert got[0].heads.keys() == due[0].heads.keys()
    for name in ("logprobs", "entropy", "values", *due[0].heads):
        torch.testing.assert_close(
            got[0].logprobs if name == "logprobs" else got[0].need(name),
            due[0].logprobs if name == "logprobs" else due[0].need(name),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )
    assert got[1].keys() == due[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in due[1].values())
    for name, gradient in due[1].items():
        assert float((got[1][name] - gradient).abs().max()) <= tolerance * scale, name


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_logprobs, "tile_of", lambda *_: (2, 5))


def rows_given(*heads: nn.Module) -> list[int]:
    """Return a list that records the number of rows of each later call of the heads."""
    rows: list[int] = []
    for head in heads:
        head.register_forward_hook(lambda *call: rows.append(call[2].shape[-2]))
    return rows


@pytest.mark.parametrize("name", [*FAMILIES, "t5", "t5, version 1.1", "bart"])
def test_log_probs_without_the_models_head_equal_those_with_it(
    name: str, monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    policy, batch = build(make(name), char_tokenizer, reference=True), dialogues("both")
    if name in FAMILIES:
        assert policy.module.logit_map == FAMILIES[name][1]
    due, kept = learn(policy, batch), policy.reference_score(batch).logprobs
    rows = rows_given(policy.model.get_output_embeddings())
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    assert_same(learn(policy, batch), due)
    torch.testing.assert_close(policy.reference_score(batch).logprobs, kept, rtol=1e-5, atol=1e-5)
    assert rows == [0]
    assert policy.score(batch, logits=True).logits.shape == (10, 32)


def exact_scores(model: PreTrainedModel, batch: Trajectories, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of the chosen tokens from all logits of plain transformers in float64."""
    logprobs, entropies = torch.zeros(2, *batch.tokens.shape, dtype=torch.float64)
    for i, real in enumerate(batch.mask):
        tokens, at = batch.tokens[i][real], batch.action_mask[i].nonzero()[:, 0]
        chosen = batch.action_mask[i][real].nonzero()[:, 0]
        each = (model(tokens[None]).logits[0, chosen - 1] / temperature).log_softmax(-1)
        logprobs = logprobs.index_put((torch.tensor(i), at), each.gather(1, tokens[chosen][:, None])[:, 0])
        entropies = entropies.index_put((torch.tensor(i), at), -(each.exp() * each).sum(-1))
    return logprobs, entropies


@pytest.mark.parametrize("bytes_of", ["", "FEW_BYTES", "WHOLE_BYTES"])  # the model's head, one buffer, tiles
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "cohere", "phi, bias"])
def test_a_temperature_divides_the_mapped_logits(
    name: str, bytes_of: str, monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    policy, batch = build(make(name), char_tokenizer, reference=True, value_head=False), dialogues("both")
    exact = copy.deepcopy(policy.model).double()
    logprobs, entropies = exact_scores(exact, batch, 0.7)
    if bytes_of:
        monkeypatch.setattr(fused_logprobs, bytes_of, 0)
    said = policy.score(batch, temperature=0.7).logprobs
    entropy = policy.score(batch, temperature=0.7, entropy=True).entropy
    assert entropy is not None
    torch.testing.assert_close(said.double(), logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), entropies, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(policy.reference_score(batch, temperature=0.7).logprobs, said, rtol=1e-5, atol=1e-5)
    slopes = torch.linspace(-1, 2, said.numel()).reshape(said.shape)
    (said * slopes + entropy * slopes.flip(0)).sum().backward()
    (logprobs * slopes + entropies * slopes.flip(0)).sum().backward()
    due = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    scale = max(float(gradient.abs().max()) for gradient in due.values())
    for parameter, gradient in due.items():
        got = policy.model.get_parameter(parameter).grad
        assert got is not None
        assert float((got - gradient).abs().max()) <= 1e-5 * scale, parameter


@pytest.mark.parametrize("options", [{}, {"unfrozen_layers": 1}, {"value_layers": 1}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("num", [0, 2])
def test_heads_frozen_layers_and_recomputing_change_nothing(
    options: dict[str, Any], num: int, monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, heads=q_heads(num) if num else {}, **options), dialogues("left")
    policy.module.train()
    due = learn(policy, batch)
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    q = [head.fall for heads in policy.module.heads.values() for head in heads.heads]
    rows = rows_given(policy.model.get_output_embeddings(), *q)
    assert_same(learn(policy, batch), due)
    assert rows == [0]  # Q-heads do not run either


def test_all_logits_are_computed_at_once_only_if_they_are_few(
    monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    policy, batch = build(make("llama"), char_tokenizer), dialogues()
    rows, whole, ten = rows_given(policy.model.get_output_embeddings()), [], 10 * 32 * 4
    monkeypatch.setattr(fused_logprobs, "whole_scores", lambda *_, **__: whole.append(1) or whole_scores(*_, **__))
    for few, kept in ((ten, ten), (ten - 1, ten), (ten - 1, ten - 1)):
        monkeypatch.setattr(fused_logprobs, "FEW_BYTES", few)
        monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", kept)
        policy.score(batch)
    assert (rows, whole) == ([10, 0, 0], [1])
    for kept in (ten, ten - 1):  # entropies are computed from all logits, or from tiles
        monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", kept)
        policy.score(batch, entropy=True)
    assert (rows, whole) == ([10, 0, 0, 10, 0], [1])


def test_mixed_precision_is_that_of_the_models_own_head(monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any) -> None:
    policy, batch = build(make("llama"), char_tokenizer), dialogues()
    policy.use_forward(policy.module, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    due = learn(policy, batch)
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    got = learn(policy, batch)
    torch.testing.assert_close(got[0].logprobs, due[0].logprobs, rtol=1e-5, atol=1e-5)
    assert_same((due[0], got[1]), due, 0.02)


class Wrapped(nn.Module):
    """Wrapper around a head, as adapters have."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head, self.weight, self.bias = head, head.weight, head.bias

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden) * 1.5


class OwnLinear(nn.Linear):
    """Linear subclass with a different forward, like 8-bit layers."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).round(decimals=2)


def with_wrapped_head() -> PreTrainedModel:
    model = make("llama")
    model.lm_head = Wrapped(model.lm_head)
    return model


def with_own_linear() -> PreTrainedModel:
    model = make("llama")
    weight = model.lm_head.weight
    model.lm_head = OwnLinear(16, 32, bias=False)
    model.lm_head.weight = weight
    return model


def changed(change: Any) -> Any:
    def make_changed() -> PreTrainedModel:
        model = make("llama")
        own = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            out = own(*args, **kwargs)
            out.logits = change(out.logits)
            return out

        model.forward = forward
        return model

    return make_changed


ELSE = {
    "a wrapped head": with_wrapped_head,
    "a linear layer of another kind": with_own_linear,
    "a bias by token": changed(lambda z: z + torch.arange(32) / 10),
    "a bend that is no cap": changed(lambda z: z.sign() * z.abs().sqrt()),
    "logits that have a floor far down": changed(lambda z: z.clamp(min=-100.0)),
    "logits that depend on each other": changed(lambda z: z - z.amax(-1, keepdim=True) * 0.5),
    "columns left out": changed(lambda z: z[..., :31]),
    "numbers that are not given": changed(lambda z: z * torch.nan),
    "what no empty batch can go through": changed(lambda z: z if z.numel() else z[:, 0] / 0),
}


@pytest.mark.parametrize("name", ELSE)
def test_a_model_with_an_unknown_head_uses_its_own_head(
    name: str, monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    model = ELSE[name]()
    with pytest.raises(TechniqueRefused):
        find_logit_map(model, CausalLayout())
    if name in ("columns left out", "numbers that are not given"):
        return
    policy, batch = build(model, char_tokenizer, speed=SpeedConfig(packing=False)), dialogues()
    due, _ = predict(model, CausalLayout(), batch.tokens, batch.mask, batch.action_mask)
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    expected = due.log_softmax(-1).gather(1, batch.tokens[batch.action_mask][:, None])[:, 0]
    torch.testing.assert_close(policy.score(batch).logprobs[batch.action_mask], expected)


def test_a_head_with_an_adapter_computes_its_own_logits(monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any) -> None:
    options = {"peft": {"type": "lora", "r": 2, "target_modules": ["lm_head"]}}  # an adapter without effect yet
    policy, batch = build(make("llama"), char_tokenizer, **options), dialogues()
    assert policy.module.logit_map is None
    due = learn(policy, batch)
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    assert_same(learn(policy, batch), due)
    assert any("lora" in name for name in due[1])


def test_an_adapter_below_the_head_does_not_prevent_the_map_of_logits(
    monkeypatch: pytest.MonkeyPatch, char_tokenizer: Any
) -> None:
    options = {"peft": {"type": "lora", "r": 2, "target_modules": ["q_proj"], "init_lora_weights": False}}
    policy, batch = build(make("llama"), char_tokenizer, reference=True, **options), dialogues()
    assert policy.module.logit_map == LogitMap()
    due, kept = learn(policy, batch), policy.reference_score(batch).logprobs
    monkeypatch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    assert_same(learn(policy, batch), due)
    torch.testing.assert_close(policy.reference_score(batch).logprobs, kept, rtol=1e-5, atol=1e-5)


def test_the_model_stays_in_its_mode_and_keeps_no_hook() -> None:
    model = make("gemma2").train()
    model.model.layers[0].eval()
    state = torch.get_rng_state()
    assert find_logit_map(model, CausalLayout()) == LogitMap(cap=3.0)
    assert model.training
    assert not model.model.layers[0].training
    head = model.get_output_embeddings()
    assert not head._forward_hooks
    assert not head._forward_pre_hooks
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
def test_the_map_of_logits_is_found_for_bfloat16_weights_too(name: str) -> None:
    found = find_logit_map(make(name).to(torch.bfloat16), CausalLayout())
    assert found == FAMILIES[name][1]  # computed in float32, whatever the dtype of the weights


def test_the_map_of_logits_is_known_for_every_encoder_decoder() -> None:
    for name in CONFIGS:
        policy = build_seq2seq(make_seq2seq(name))
        assert policy.module.logit_map == LogitMap(), name
