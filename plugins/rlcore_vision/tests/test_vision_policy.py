"""Laws of policies that see: what they compute is what the model computes from the processor's own inputs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from vision_making import ANSWER, answered, extended, picture, policy_of, processed, prompts_of

from rlcore.errors import DataError, ModelError
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_transformers.sampling.sampler import sample
from rlcore_vision.image_store import FIRST
from rlcore_vision.model import build_vision_language
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.seeing import ReadImages
from rlcore_vision.tiny_families import FAMILIES

families = pytest.mark.parametrize("family", sorted(FAMILIES))


def own_inputs(policy: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return those of a processor's outputs that the model takes."""
    known = inspect.signature(policy.model.forward).parameters
    return {name: value for name, value in inputs.items() if name in known}


@families
def test_logprobs_and_tokens_are_those_of_the_model_and_its_processor(family: str) -> None:
    policy, processor = policy_of(family)
    prompts = prompts_of(policy)
    batch = answered(policy, prompts)
    ids = policy.tokenizer.convert_tokens_to_ids(list(ANSWER))
    with torch.no_grad():
        scored = policy.score(batch).logprobs
        for row, (prompt, inputs) in enumerate(zip(prompts, processed(processor), strict=True)):
            size = inputs["input_ids"].shape[1]
            image = policy.model.config.image_token_id
            assert [image if token >= FIRST else token for token in prompt.tokens] == inputs["input_ids"][0].tolist()
            logits = policy.model(**own_inputs(policy, extended(inputs, ids))).logits[0]
            expected = logits.log_softmax(-1)[torch.arange(size - 1, size + 2), ids]
            torch.testing.assert_close(scored[row, size : size + 3], expected, rtol=0, atol=1e-6)


@families
def test_padding_and_the_order_of_a_batch_change_nothing(family: str) -> None:
    policy, _ = policy_of(family)
    batch = answered(policy, prompts_of(policy))
    with torch.no_grad():
        together = policy.score(batch).logprobs[batch.action_mask].view(3, 3)
        order = torch.tensor([2, 0, 1])
        moved = batch.rows(order)
        reordered = policy.score(moved).logprobs[moved.action_mask].view(3, 3)
        left = Trajectories.stack([[0] * 5 + row.tokens[0].tolist() for row in batch.split(1)],
                                  [[False] * 5 + row.action_mask[0].tolist() for row in batch.split(1)])  # fmt: skip
        left = attrs.evolve(left, mask=left.mask & (torch.arange(left.tokens.shape[1]) >= 5))
        padded = policy.score(left).logprobs[left.action_mask].view(3, 3)
    torch.testing.assert_close(reordered, together[order], rtol=0, atol=2e-6)
    torch.testing.assert_close(padded, together, rtol=0, atol=2e-6)


@families
def test_sampled_logprobs_are_those_of_a_whole_forward_pass(family: str) -> None:
    policy, _ = policy_of(family, parts={"value_head": True})
    prompts = prompts_of(policy)
    drawn = sample(
        policy, [*prompts, *prompts[:2]], SamplingConfig(max_new_tokens=8), row_seeds=[5, 6, 7, 8, 9]
    )  # fmt: skip
    with torch.no_grad():
        again = policy.score(drawn)
    torch.testing.assert_close(drawn["logprobs"], again.logprobs, rtol=0, atol=2e-6)
    torch.testing.assert_close(drawn["values"], again.values, rtol=0, atol=2e-6)


@families
def test_greedy_outputs_are_those_of_generate(family: str) -> None:
    policy, processor = policy_of(family)
    torch.nn.init.normal_(policy.model.get_output_embeddings().weight)  # so that no two tokens are close
    drawn = sample(policy, prompts_of(policy), SamplingConfig(max_new_tokens=6, temperature=0.0))
    for row, inputs in zip(drawn.action_tokens, processed(processor), strict=True):
        size = inputs["input_ids"].shape[1]
        found = policy.model.generate(
            **own_inputs(policy, inputs), max_new_tokens=6, do_sample=False, eos_token_id=list(policy.eos_token_ids)
        )
        assert row == found[0, size:].tolist()


@families
def test_the_image_decides_and_its_features_are_computed_once_for_a_group(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = policy_of(family)
    asked = "what colour ?"
    one, other, same = prompts_of(policy, [{"prompt": asked, "images": [picture(k)]} for k in (1, 2, 1)])
    batch = answered(policy, [one, other, same, one])
    seen: list[int] = []
    features = policy.model.get_image_features

    def counted(pixel_values: torch.Tensor, **inputs: Any) -> Any:
        seen.append(pixel_values.numel())
        return features(pixel_values, **inputs)

    monkeypatch.setattr(policy.model, "get_image_features", counted)
    with torch.no_grad():
        scored = policy.score(batch).logprobs[batch.action_mask].view(4, 3)
        policy.score(batch.rows(torch.tensor([0, 1])))
    torch.testing.assert_close(scored[0], scored[2], rtol=0, atol=1e-6)
    assert (scored[0] - scored[1]).abs().max() > 1e-4
    assert seen == [seen[1], seen[1]]


def test_an_image_token_that_the_policy_chose_is_a_token_like_others() -> None:
    policy, _ = policy_of("llava")
    (prompt,) = prompts_of(policy, [{"prompt": "red", "images": [picture(1)]}])
    tokens = [*prompt.tokens, policy.model.config.image_token_id, 20]
    batch = Trajectories.stack([tokens], [[False] * len(prompt.tokens) + [True, True]])
    with torch.no_grad():
        assert policy.score(batch).logprobs[0, -2:].isfinite().all()


def test_freezing_the_vision_encoder_leaves_the_projection_to_train() -> None:
    policy, _ = policy_of("llava", freeze_vision=True)
    batch = answered(policy, prompts_of(policy))
    policy.score(batch).logprobs.sum().backward()
    model = policy.model.base_model
    assert all(weight.grad is None for weight in model.vision_tower.parameters())
    assert all(weight.grad is not None for weight in model.multi_modal_projector.parameters())
    thawed = build_vision_language(policy.model, VisionLanguageConfig(), tokenizer=policy.tokenizer)
    trained = {name for name, each in thawed.model.base_model.vision_tower.named_parameters() if each.requires_grad}
    assert trained
    assert trained == {name for name, _ in model.vision_tower.named_parameters() if "post_layernorm" not in name}


def test_freezing_the_vision_encoder_leaves_a_projection_inside_it_to_train() -> None:
    policy, _ = policy_of("qwen2_vl", freeze_vision=True)
    policy.score(answered(policy, prompts_of(policy))).logprobs.sum().backward()
    named = dict(policy.model.base_model.visual.named_parameters())
    trained = {name for name, weight in named.items() if weight.grad is not None}
    assert trained == {name for name in named if name.startswith("merger.")}
    assert 0 < len(trained) < len(named)


@families
def test_freezing_the_vision_encoder_freezes_adapters_inside_it(family: str) -> None:
    names = ["q_proj", "v_proj", *(["qkv"] if family == "qwen2_vl" else [])]
    both = {"type": "lora", "r": 2, "target_modules": names}
    policy, _ = policy_of(family, freeze_vision=True, peft=both)
    policy.score(answered(policy, prompts_of(policy))).logprobs.sum().backward()
    named = {name: weight for name, weight in policy.model.named_parameters() if "lora_" in name}
    inside = {name for name in named if ".vision" in name or ".visual" in name}
    trained = {name for name, weight in named.items() if weight.requires_grad}
    assert inside
    assert trained == named.keys() - inside
    assert all(named[name].grad is None for name in inside)
    thawed = build_vision_language(policy.model, VisionLanguageConfig(), tokenizer=policy.tokenizer)
    again = {name for name, weight in thawed.model.named_parameters() if weight.requires_grad}
    assert trained < again <= named.keys()
    assert again & inside


def test_an_adapter_in_a_frozen_encoder_alone_is_refused() -> None:
    inside = {"type": "lora", "r": 2, "target_modules": ["qkv"]}
    with pytest.raises(ModelError, match="the whole adapter lies in the vision encoder"):
        policy_of("qwen2_vl", freeze_vision=True, peft=inside)


@families
def test_gradients_reach_the_vision_encoder(family: str) -> None:
    policy, _ = policy_of(family)
    policy.score(answered(policy, prompts_of(policy))).logprobs.sum().backward()
    vision = [w for name, w in policy.model.named_parameters() if ".visi" in name or ".visual" in name]
    assert any(weight.grad is not None and weight.grad.abs().max() > 0 for weight in vision)


@families
def test_an_adapter_trains_alone_and_is_switched_off_for_the_reference(family: str) -> None:
    policy, _ = policy_of(
        family, parts={"reference": True}, peft={"type": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}
    )
    batch = answered(policy, prompts_of(policy))
    assert not isinstance(policy.reference, torch.nn.Module)
    trained = [weight for name, weight in policy.module.named_parameters() if weight.requires_grad]
    with torch.no_grad():
        before = policy.score(batch).logprobs
        torch.testing.assert_close(policy.reference_score(batch).logprobs, before, rtol=0, atol=1e-6)
        for weight in trained:
            weight.normal_()
        assert (policy.score(batch).logprobs - before).abs().max() > 1e-3
        torch.testing.assert_close(policy.reference_score(batch).logprobs, before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["llava", "gemma3", "idefics3"])  # the whole processor of Qwen2-VL needs torchvision
def test_a_saved_policy_is_a_model_and_a_processor_of_transformers(family: str, tmp_path: Path) -> None:
    policy, _ = policy_of(family)
    batch = answered(policy, prompts_of(policy))
    policy.save_pretrained(tmp_path)
    plain, processor = AutoModelForImageTextToText.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    inputs = own_inputs(policy, processed(processor)[1])
    with torch.no_grad():
        torch.testing.assert_close(plain(**inputs).logits, policy.model(**inputs).logits)
        again = build_vision_language(str(tmp_path), VisionLanguageConfig())
        assert again.tokenizer.fingerprint_parts == policy.tokenizer.fingerprint_parts
        expected = policy.score(batch).logprobs
        torch.testing.assert_close(again.score(answered(again, prompts_of(again))).logprobs, expected)


@pytest.mark.slow
def test_options_of_the_tokenizer_are_those_of_the_processor_that_is_saved(tmp_path: Path) -> None:
    policy, _ = policy_of("llava")
    policy.save_pretrained(tmp_path / "model")
    ended = policy.eos_token_ids
    stated = {"eos_token": "red", "chat_template": "{{ messages[0].content }} blue"}
    changed = build_vision_language(str(tmp_path / "model"), VisionLanguageConfig(), tokenizer=stated)
    red = changed.tokenizer.convert_tokens_to_ids("red")
    changed.export(tmp_path / "changed")
    assert changed.eos_token_ids == (red, *ended)
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "changed").generation_config.eos_token_id[0] == red
    saved = AutoProcessor.from_pretrained(tmp_path / "changed")
    assert saved.tokenizer.eos_token == "red"
    assert saved.apply_chat_template([{"role": "user", "content": "a"}]) == "a blue"


def test_a_sequence_cut_within_an_image_is_refused() -> None:
    policy, _ = policy_of("llava")
    (prompt,) = prompts_of(policy, [{"prompt": "red", "images": [picture(1)]}])
    batch = answered(policy, [attrs.evolve(prompt, tokens=prompt.tokens[1:])])
    with pytest.raises(DataError, match="truncated within an image of 4 tokens"):
        policy.score(batch)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"critic": "copy"}, "model.critic"), ({"value_layers": 1}, "model.value_layers")],
)
def test_value_functions_of_their_own_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        policy_of("llava", **options)


def test_a_model_without_a_processor_says_what_to_pass() -> None:
    config, _ = FAMILIES["llava"]()
    with pytest.raises(ModelError, match="pass tokenizer=, the processor"):
        build_vision_language(config, VisionLanguageConfig())


@families
def test_beside_other_processes_a_batch_without_images_gives_every_parameter_a_gradient_of_the_same_value(
    family: str,
) -> None:
    gradients = []
    for is_alone in (True, False):
        policy, _ = policy_of(family)
        (reader,) = (hook for hook in policy.model._forward_pre_hooks.values() if isinstance(hook, ReadImages))
        reader.is_alone = is_alone
        batch = answered(policy, prompts_of(policy, ["red", "yes no in this ?"]))
        scored = policy.score(batch).logprobs
        scored.sum().backward()
        gradients.append(
            {name: weight.grad for name, weight in policy.model.named_parameters() if weight.requires_grad}
        )
        gradients[-1]["scored"] = scored.detach()
    alone, beside = gradients
    assert any(each is None for each in alone.values())
    for name, gradient in beside.items():
        expected = torch.zeros_like(gradient) if alone[name] is None else alone[name]
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


@families
def test_every_parameter_that_trains_gets_a_gradient_from_a_batch_with_images(family: str) -> None:
    policy, _ = policy_of(family)
    policy.score(answered(policy, prompts_of(policy))).logprobs.sum().backward()
    named = dict(policy.model.named_parameters())
    assert [name for name, weight in named.items() if weight.requires_grad and weight.grad is None] == []
    frozen = {name for name, weight in named.items() if not weight.requires_grad}
    unread = {"llava": ".post_layernorm.", "gemma3": ".head."}  # above the layer that is read
    assert all(unread[family] in name for name in frozen)
    assert bool(frozen) == (family in unread)
