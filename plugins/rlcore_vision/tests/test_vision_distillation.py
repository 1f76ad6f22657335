"""Distillation on rows with images: the teacher sees the images too, and a teacher of texts is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from vision_making import answered, extended, picture, policy_of, prompts_of

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, DataError, ModelError, RewardError
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import make_llama
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.seeing import require_same_images
from rlcore_vision.tiny_families import FAMILIES, make_tokenizer

PICTURES = [picture(k) for k in range(4)]
PROMPTS = [{"prompt": "what colour ?", "images": [image]} for image in PICTURES]


def model_of(seed: int, family: str = "llava") -> Any:
    """Return a model whose features of images are large, so that its outputs depend on them."""
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(FAMILIES[family]()[0])
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    model_of(7).save_pretrained(tmp_path / "teacher")
    FAMILIES["llava"]()[1].save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@torch.no_grad()
def own_logprobs(model: Any, image: Any, answer: list[int]) -> torch.Tensor:
    """Return the distributions of an answer's tokens, by a model's own forward pass on the processor's inputs."""
    processor = FAMILIES["llava"]()[1]
    text = f"{processor.image_token}what colour ?"
    inputs = dict(processor(text=[text], images=[image], return_tensors="pt", add_special_tokens=False))
    size = inputs["input_ids"].shape[1]
    logits = model(**extended(inputs, answer)).logits[0, size - 1 : size - 1 + len(answer)]
    return logits.double().log_softmax(-1)


@pytest.mark.slow
def test_the_loss_is_the_divergence_from_a_teacher_that_sees_the_image(tmp_path: Path, teacher: Path) -> None:
    options = {"name": "distill_prompts", "teacher": str(teacher), "divergence": "forward_kl", "on_policy": 0.5}
    trainer = assembled(tmp_path, {**options, "batch_size": 4}, prompts=PROMPTS)
    batch, metrics = trainer.rows.next()
    assert metrics["data/on_policy_fraction"] == 0.5
    batch = batch.own
    losses = trainer.loss(batch)[0]
    images, other = trainer.policy().tokenizer.images, model_of(7)
    blind = []
    for row, loss, chosen in zip(batch.tokens.tolist(), losses, batch.action_mask, strict=True):
        answer = [token for token, is_chosen in zip(row, chosen, strict=True) if is_chosen]
        image = images.open(max(row))
        student, expected = own_logprobs(model_of(1), image, answer), own_logprobs(other, image, answer)
        each = (expected.exp() * (expected - student)).sum(-1)
        torch.testing.assert_close(loss[chosen].double(), each, rtol=0, atol=1e-5)
        another = own_logprobs(other, picture(9), answer)
        blind.append(((another.exp() * (another - student)).sum(-1) - each).abs().max().item())
    assert min(blind) > 1e-2
    next(trainer.steps())


def assembled(folder: Path, trainer: dict[str, Any], **given: Any) -> Any:
    settings = {
        "trainer": trainer,
        "loggers": [],
        "gen": {"max_new_tokens": 3},
        "run": {"root": str(folder), "steps": 1},
    }
    inputs = Inputs(model=model_of(1), tokenizer=FAMILIES["llava"]()[1], **given)
    return assemble(structure(TrainConfig, settings, where="test"), inputs, "test").trainer


PAIRS = [{**row, "chosen": " red", "rejected": " blue"} for row in PROMPTS]
COMPARED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"name": "distill_prompts", "batch_size": 4}, {"prompts": PROMPTS}, "teacher"),
    ({"name": "dpo", "batch_size": 4, "precompute_ref": False}, {"samples": PAIRS}, "ref_model"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "given", "option"), COMPARED, ids=["teacher", "reference"])
def test_a_model_whose_processor_has_other_settings_is_not_compared_with_the_policy(
    tmp_path: Path, teacher: Path, trainer: dict[str, Any], given: dict[str, Any], option: str
) -> None:
    other = AutoProcessor.from_pretrained(teacher)
    other.image_processor.image_mean = [0.5, 0.5, 0.5]
    other.image_processor.do_convert_rgb = False
    other.save_pretrained(teacher)
    options = {**trainer, option: str(teacher)}
    message = (
        r"teacher': its processor has other settings than the policy's: do_convert_rgb is false, and true for the "
        r"policy \(also image_mean\)\. .* save the policy's processor in its folder"
    )
    with pytest.raises(ModelError, match=message):
        assembled(tmp_path / "one", options, **given)
    FAMILIES["llava"]()[1].save_pretrained(teacher)
    assembled(tmp_path / "two", options, **given)
    for file in ("processor_config.json", "preprocessor_config.json"):
        (teacher / file).unlink(missing_ok=True)
    assembled(tmp_path / "three", options, **given)  # nothing is known of the teacher's own


def test_a_processor_whose_patches_are_others_is_found(teacher: Path) -> None:
    processor = FAMILIES["llava"]()[1]
    require_same_images(str(teacher), processor, VisionLanguageConfig())
    processor.patch_size = 4
    with pytest.raises(ModelError, match="patch_size is 8, and 4 for the policy"):
        require_same_images(str(teacher), processor, VisionLanguageConfig())


def test_a_teacher_that_sees_is_refused_as_a_reward(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.path = .*: is a model of texts and images \(LlavaConfig\), and"):
        rlcore.train(
            model_of(1), tokenizer=FAMILIES["llava"]()[1], trainer={"name": "grpo"}, prompts=PROMPTS,
            reward_fn={"name": "teacher", "path": str(teacher)}, run={"root": str(tmp_path), "steps": 1}, loggers=[],
        )  # fmt: skip


def test_prompts_with_images_are_refused_by_a_teacher_of_texts_as_a_reward(tmp_path: Path) -> None:
    make_llama(vocab=len(make_tokenizer("<image>"))).save_pretrained(tmp_path / "texts")
    make_tokenizer("<image>").save_pretrained(tmp_path / "texts")
    with pytest.raises(RewardError, match=r"reward 'teacher': the prompt .* shows an image, and this teacher reads"):
        rlcore.train(
            model_of(1), tokenizer=FAMILIES["llava"]()[1], prompts=PROMPTS, gen={"max_new_tokens": 2}, loggers=[],
            trainer={"name": "grpo", "rollouts": 4, "num_generations": 2}, eval={"show": 0},
            reward_fn={"name": "teacher", "path": str(tmp_path / "texts")}, run={"root": str(tmp_path), "steps": 1},
        )  # fmt: skip


def test_a_server_is_sent_no_prompt_with_an_image() -> None:
    server = pytest.importorskip("rlcore_distill.server")
    policy, _ = policy_of("llava")
    options = SimpleNamespace(
        url="http://127.0.0.1:1/v1", model="m", key_env=None, concurrency=1, timeout_s=1.0, retries=0, top_k=2
    )
    logprobs = server.ServerLogprobs(options, policy.tokenizer)
    with pytest.raises(DataError, match=r"trainer\.server\.url: a prompt shows an image, and a server is sent texts"):
        logprobs(answered(policy, prompts_of(policy, PROMPTS[:1])))
