"""Tests of adapters: what is trained, the reference, and that the rest of the policy is unchanged."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from adapting import MODELS, assert_equal, batch, build, lora, step, weights
from torch import nn

from rlcore.errors import ModelError
from rlcore.ops import disable_dropout
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore_transformers.models.model_options import SpeedConfig
from rlcore_transformers.models.peft.adapters import Adapters

IA3 = {"type": "ia3", "target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}


@pytest.mark.parametrize("family", MODELS)
def test_a_policy_without_its_adapter_equals_its_base_bit_for_bit(family: str) -> None:
    base = build(copy.deepcopy(MODELS[family]()), None, value_head=False)
    policy = build(family, lora(family))
    assert isinstance(policy.reference, Adapters)  # no second model
    expected = base.reference_score(batch()).logprobs
    assert torch.equal(policy.reference_score(batch()).logprobs, expected)
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, expected)
    assert (policy.score(batch()).logprobs - expected).abs().max() > 0.01


@pytest.mark.parametrize(
    "options", [lora(use_dora=True), lora(use_rslora=True), lora(modules_to_save=["lm_head"]), IA3]
)
def test_a_policy_with_a_zero_initialised_adapter_needs_no_copy_as_reference(options: dict[str, Any]) -> None:
    base = build("llama", None)
    policy = build("llama", options)
    assert isinstance(policy.reference, Adapters)
    before = base.reference_score(batch()).logprobs
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, before)
    assert not torch.equal(policy.score(batch()).logprobs, before)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", lora(init_lora_weights=False)),  # a non-zero initial adapter
        ("llama", lora(init_lora_weights="pissa")),  # modifies the base weights
        ("gpt2", lora("gpt2", bias="all")),  # trains more than the adapter
        ("llama", {"type": "trainable_tokens", "token_indices": [2], "init_weights": False}),  # affects one token only
    ],
)
def test_a_copy_is_the_reference_if_disabling_the_adapter_is_not_exact(family: str, options: dict[str, Any]) -> None:
    policy = build(family, options)
    assert not isinstance(policy.reference, Adapters)
    before = policy.score(batch()).logprobs.detach()
    assert torch.equal(policy.reference_score(batch()).logprobs, before)
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, before)
    held = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
    shared = sum(p.numel() for p in policy.reference.parameters() if id(p) in held)
    assert shared == sum(p.numel() for p in held.values()) > 0  # frozen weights are not copied


def test_the_reference_of_a_trained_adapter_keeps_its_weights() -> None:
    model = MODELS["llama"]()
    step(build(model, lora()))
    policy = build(model, None)
    before = policy.score(batch()).logprobs.detach()
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, before)


@pytest.mark.parametrize("num", [0, 2])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_only_adapters_and_heads_train(family: str, num: int) -> None:
    policy = build(family, lora(family, modules_to_save=["lm_head"]), num=num)
    names = {name for name, p in policy.module.named_parameters() if p.requires_grad}
    model = {name for name in names if name.startswith("model.")}
    assert model
    assert all(".lora_" in name or name.startswith("model.lm_head.modules_to_save.") for name in model)
    assert any(name.startswith("value.") for name in names)
    before = weights(policy.module)
    said = policy.score(batch())
    terms = [said.logprobs, said.values, *(each for name, each in said.heads.items() if name == "q_values")]
    sum(term.sum() for term in terms).backward()
    assert all((p.grad is not None) == p.requires_grad for p in policy.module.parameters())
    step(policy)
    changed = {name for name, weight in weights(policy.module).items() if not torch.equal(weight, before[name])}
    assert changed <= names
    assert {name for name in changed if ".lora_" in name} == {name for name in names if ".lora_" in name}


@pytest.mark.parametrize("option", [{"value_layers": 1}, {"critic": "copy"}])
def test_values_of_their_own_layers_train_an_adapter_of_their_own(option: dict[str, Any]) -> None:
    policy = build("llama", lora(), **option)
    own = {id(p) for p in policy.model.parameters()}
    named = [(name, p) for name, p in policy.module.value.named_parameters() if id(p) not in own]
    assert all(".lora_" in name or name.startswith("head.") for name, _ in named)
    assert all(p.requires_grad for _, p in named)
    before = policy.reference_score(batch()).logprobs
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, before)


def test_scoring_with_the_reference_does_not_change_the_policy() -> None:
    policy = build("llama", lora(modules_to_save=["lm_head"]))
    policy.module.train()
    policy.model.model.layers[0].eval()
    next(p for name, p in policy.model.named_parameters() if "lora_A" in name).requires_grad_(False)
    flags = [p.requires_grad for p in policy.module.parameters()]
    modes = [module.training for module in policy.module.modules()]
    said = policy.score(batch()).logprobs
    policy.reference_score(batch())
    assert flags == [p.requires_grad for p in policy.module.parameters()]
    assert modes == [module.training for module in policy.module.modules()]
    assert torch.equal(policy.score(batch()).logprobs, said)


def test_adapter_dropout_is_off_in_the_reference_and_wherever_a_trainer_disables_dropout() -> None:
    model = MODELS["gpt2"]()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    policy = build(model, lora("gpt2", lora_dropout=0.5))
    step(policy)  # an adapter with an effect
    policy.module.eval()
    still, reference = policy.score(batch()).logprobs, policy.reference_score(batch()).logprobs
    policy.module.train()
    assert not torch.equal(policy.score(batch()).logprobs, still)
    assert torch.equal(policy.reference_score(batch()).logprobs, reference)
    disable_dropout(policy.module)
    assert torch.equal(policy.score(batch()).logprobs, still)


@pytest.mark.parametrize("options", [{"type": "loha", "rank_dropout": 0.9}, {"type": "lokr", "module_dropout": 0.9}])
def test_disabling_dropout_covers_other_adapters_too(options: dict[str, Any]) -> None:
    policy = build("llama", {"target_modules": ["q_proj", "v_proj"], **options})
    disable_dropout(policy.module)
    step(policy)
    policy.module.eval()
    still = policy.score(batch()).logprobs
    policy.module.train()
    assert all(torch.equal(policy.score(batch()).logprobs, still) for _ in range(5))


def test_a_new_adapter_is_in_the_mode_its_model_is_in() -> None:
    policy = build("llama", lora(lora_dropout=0.5))
    assert not any(part.training for part in policy.model.modules())


def test_weights_that_an_earlier_run_froze_stay_frozen_below_an_adapter() -> None:
    model = MODELS["llama"]()
    build(model, None, unfrozen_layers=1)
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj"]))
    policy = build(model, None)
    assert all(".lora_" in name for name, p in policy.model.named_parameters() if p.requires_grad)


def test_packing_does_not_change_the_outputs_of_a_model_with_an_adapter() -> None:
    policy, padded = build("llama", lora()), build("llama", lora(), speed=SpeedConfig(packing=False))
    step(policy)
    step(padded)
    assert policy.module.layout.longest > 0
    assert padded.module.layout.longest == 0
    torch.testing.assert_close(policy.score(batch()).logprobs, padded.score(batch()).logprobs, atol=1e-5, rtol=0)


def test_samples_come_from_the_model_with_its_adapter() -> None:
    policy = build("gpt2", lora("gpt2"))
    step(policy, 10)
    policy.module.train()
    drawn = sample(policy, ["ab", "cde"], SamplingConfig(max_new_tokens=6), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(policy.score(drawn).logprobs, drawn.columns["logprobs"], atol=1e-5, rtol=0)
    assert (policy.reference_score(drawn).logprobs - drawn.columns["logprobs"]).abs().max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_gradient_checkpointing_does_not_change_the_training_of_an_adapter(family: str) -> None:
    plain, recomputing = build(family, lora(family)), build(family, lora(family), gradient_checkpointing=True)
    for policy in (plain, recomputing):
        policy.module.train()
    assert isinstance(recomputing.reference, Adapters)
    assert step(plain) == pytest.approx(step(recomputing), abs=1e-6)
    for name, weight in weights(plain.module).items():
        torch.testing.assert_close(recomputing.module.state_dict()[name], weight, atol=1e-5, rtol=0)


def test_an_adapter_is_held_in_full_precision() -> None:
    policy = build(MODELS["llama"]().to(torch.bfloat16), lora())
    assert {p.dtype for p in policy.model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in policy.model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert isinstance(policy.reference, Adapters)
    before = policy.reference_score(batch()).logprobs
    step(policy)
    assert torch.equal(policy.reference_score(batch()).logprobs, before)


def test_the_initial_weights_of_an_adapter_depend_on_the_seed_only() -> None:
    drawn = []
    for seed, draws in ((3, 0), (3, 7), (4, 0)):
        model = MODELS["llama"]()
        torch.manual_seed(seed)
        torch.rand(draws)  # because loading methods may consume different amounts of random numbers
        state = torch.get_rng_state()
        build(model, lora(), value_head=False)
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(model.model.layers[0].self_attn.q_proj.lora_A["default"].weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_models_in_memory_with_an_adapter_are_used_unchanged() -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(MODELS["llama"](), config)
    policy = build(wrapped, None)
    assert policy.model is wrapped.get_base_model()
    added = MODELS["llama"]()
    added.add_adapter(config, "mine")
    step(build(added, None))
    assert build(added, None).model is added
    logits = wrapped(input_ids=batch().tokens[:1]).logits[0]
    expected = logits.log_softmax(-1)[2:8].gather(1, batch().tokens[0, 3:, None])[:, 0]
    torch.testing.assert_close(policy.score(batch()).logprobs[0, 3:], expected, atol=1e-5, rtol=0)


def test_a_model_that_got_its_adapter_here_may_be_given_again() -> None:
    model = MODELS["llama"]()
    step(build(model, lora()))
    before = weights(model)
    assert build(model, lora()).model is model
    assert_equal(weights(model), before)
    with pytest.raises(ModelError, match="carries an adapter already: leave model"):
        build(model, lora(r=8))
