"""Reward models that see: what they score, what they learn from pairs, and the reward that they become."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from vision_making import FAMILIES, picture, scored_alone

import rlcore
from rlcore.errors import ModelError
from rlcore.types import Trajectories
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.reward.config import VisionRewardConfig
from rlcore_vision.reward.reward_model import HEAD, SeeingScorer, VisionRewardModel, build_vision_scorer

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour is the shape ?"}]}]


def scorer_of(family: str) -> SeeingScorer:
    config, processor = FAMILIES[family]()
    torch.manual_seed(0)
    return build_vision_scorer(config, VisionLanguageConfig(), tokenizer=processor)


def tokens_of(scorer: Any, seed: int, answer: str) -> list[int]:
    row = scorer.tokenizer.read_row({"prompt": QUESTION, "images": [picture(seed)]}, "prompt", "row")
    talk = [*row["prompt"], {"role": "assistant", "content": answer}]
    return list(scorer.tokenizer(scorer.tokenizer.apply_chat_template(talk), add_special_tokens=False).input_ids)


def batch_of(rows: list[list[int]]) -> Trajectories:
    return Trajectories.stack(rows, [[False] * len(row) for row in rows])


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_score_is_the_head_at_the_last_hidden_state_of_the_models_own_pass(family: str) -> None:
    """The processor's inputs go through the model itself, and the head's weights are applied by hand."""
    scorer = scorer_of(family)
    processor = FAMILIES[family]()[1]
    talk = [*QUESTION, {"role": "assistant", "content": "red"}]
    text = processor.apply_chat_template(talk)
    inputs = processor(text=[text], images=[picture(3)], return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        hidden = scorer.model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        expected = float(hidden @ scorer.module.heads[HEAD].score.weight[0] * scorer.module.heads[HEAD].gain)
        found = scorer.score(batch_of([tokens_of(scorer, 3, "red")]))
    assert found.shape == (1,)
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_padding_and_the_order_of_a_batch_change_no_score_and_the_image_does() -> None:
    scorer = scorer_of("llava")
    rows = [tokens_of(scorer, 1, "red"), tokens_of(scorer, 2, "red green blue"), tokens_of(scorer, 2, "red")]
    with torch.no_grad():
        alone = torch.cat([scorer.score(batch_of([row])) for row in rows])
        together, backward = scorer.score(batch_of(rows)), scorer.score(batch_of(rows[::-1]))
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(backward.flip(0), alone, atol=1e-5)
    assert abs(alone[0] - alone[2]) > 1e-4


def pairs(seed: int, count: int) -> list[dict[str, Any]]:
    """Return pictures of one colour, each with its name as the chosen answer and another one as the rejected one."""
    from PIL import Image

    randoms, rows = random.Random(seed), []
    for _ in range(count):
        right, wrong = randoms.sample(["red", "green", "blue"], 2)
        image = Image.new("RGB", (16, 16), right)
        image.putpixel((randoms.randrange(16), randoms.randrange(16)), (0, 0, 0))
        answers = {
            name: [{"role": "assistant", "content": text}] for name, text in (("chosen", right), ("rejected", wrong))
        }
        rows.append({"images": [image], "prompt": QUESTION, **answers})
    return rows


def train(folder: Path, **options: Any) -> Any:
    config, processor = FAMILIES["llava"]()
    torch.manual_seed(0)
    run = {"root": str(folder), "name": "run", "report": False, **options.pop("run", {})}
    return rlcore.train(
        {"path": config, "architecture": "vision_scorer", **options.pop("model", {})}, tokenizer=processor,
        trainer={"name": "reward", "batch_size": 16, "optimizer": {"lr": 3e-3}}, samples=pairs(0, 64),
        eval_samples=pairs(1, 64), loggers=[], run=run, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    return Path(train(folder, run={"steps": 100}, eval={"at_start": True}).run_dir)


@pytest.mark.slow
def test_pairs_about_images_are_learned_and_the_folder_is_a_reward(trained: Path) -> None:
    lines = map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    accuracy = [line["eval/reward/accuracy"] for line in lines if "eval/reward/accuracy" in line]
    assert accuracy[0] < 0.8
    assert accuracy[-1] > 0.95
    reward = VisionRewardModel(VisionRewardConfig(path=str(trained / "model")))
    policy = scorer_of("llava")  # another process of images and another order of reading
    rows = pairs(2, 40)
    placed = [
        policy.tokenizer.read_row({"prompt": row["prompt"], "images": row["images"]}, "prompt", "row") for row in rows
    ]
    scores = {
        name: reward(
            [""] * len(rows), [row[name][0]["content"] for row in rows],
            [[*place["prompt"], *row[name]] for place, row in zip(placed, rows, strict=True)],
            [[policy.tokenizer.eos_token_id]] * len(rows), policy.tokenizer,
        )
        for name in ("chosen", "rejected")
    }  # fmt: skip
    better = [a > b for a, b in zip(scores["chosen"], scores["rejected"], strict=True)]  # type: ignore[operator]
    assert sum(better) >= 38
    reward.close()
    again = reward(
        [""], ["red"], [[*placed[0]["prompt"], *rows[0]["chosen"]]], [[policy.tokenizer.eos_token_id]], policy.tokenizer
    )
    assert again[0] == pytest.approx(scores["chosen"][0], abs=1e-5)


@pytest.mark.slow
def test_grpo_is_rewarded_by_a_model_that_sees(trained: Path, tmp_path: Path) -> None:
    """Each reward of the run is the reward model's own, by plain transformers, of the completion and its image."""
    config, processor = FAMILIES["llava"]()
    torch.manual_seed(1)
    images = [row["images"][0] for row in pairs(5, 8)]
    rows = [{"images": [image], "prompt": QUESTION, "number": k} for k, image in enumerate(images)]
    words = ["red", "green", "blue", "yellow", processor.tokenizer.eos_token]
    result = rlcore.train(
        config, tokenizer=processor, prompts=rows, loggers=[], gen={"max_new_tokens": 2},
        sampler={"name": "default", "allowed_tokens": processor.tokenizer.convert_tokens_to_ids(words)},
        trainer={"name": "grpo", "rollouts": 16, "num_generations": 2, "optimizer": {"lr": 1e-3}},
        reward_fn={"fn": "vision_reward_model", "path": str(trained / "model")},
        run={"root": str(tmp_path), "name": "run", "steps": 2, "report": False, "rollouts": "all"},
    )  # fmt: skip
    logged = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    assert len(logged) == 32
    assert {row["columns"]["number"] for row in logged} == set(range(8))
    assert {row["ended"] for row in logged} == {True, False}
    for row in logged:
        end = " <end>" if row["ended"] else ""
        text = f"user : <image>what colour is the shape ? <end>assistant : {row['output']}{end}"
        assert row["reward"] == pytest.approx(
            scored_alone(trained / "model", images[row["columns"]["number"]], text), abs=1e-4
        )


@pytest.mark.slow
def test_resuming_equals_not_having_stopped(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", run={"steps": 4})
    train(tmp_path / "parts", run={"steps": 2})
    parts = train(tmp_path / "parts", run={"steps": 4, "resume": "auto"})
    for mine, other in zip(
        parts.run.models.learner.module.parameters(), whole.run.models.learner.module.parameters(), strict=True
    ):
        assert torch.equal(mine, other)


@pytest.mark.slow
def test_an_adapter_and_the_head_train(tmp_path: Path) -> None:
    peft = {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]}
    result = train(tmp_path, run={"steps": 2}, model={"peft": peft})
    trains = {name for name, weight in result.run.models.learner.module.named_parameters() if weight.requires_grad}
    assert any("lora_" in name for name in trains)
    assert f"{HEAD}.score.weight" in trains
    assert not any("embed_tokens" in name or "lm_head" in name for name in trains)


def test_a_folder_without_the_head_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no file heads\.safetensors with the head 'sequence_score'"):
        VisionRewardModel(VisionRewardConfig(path=str(tmp_path)))
