"""The reward `vision_reward_model`: which image it scores, and what it is without its package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from PIL import Image
from vision_making import picture, policy_of, scored_alone

from rlcore.errors import DataError
from rlcore_vision import image_rows
from rlcore_vision.image_store import STORES
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.reward.config import VisionRewardConfig
from rlcore_vision.reward.reward_model import VisionRewardModel, build_vision_scorer
from rlcore_vision.tiny_families import FAMILIES

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour ?"}]}]
TEXT = "user : <image>what colour ? <end>assistant : red"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a reward model of random weights."""
    made = tmp_path_factory.mktemp("reward") / "model"
    config, processor = FAMILIES["llava"]()
    torch.manual_seed(0)
    build_vision_scorer(config, VisionLanguageConfig(), tokenizer=processor).save_pretrained(made)
    return made


@pytest.fixture
def reward(folder: Path) -> VisionRewardModel:
    return VisionRewardModel(VisionRewardConfig(path=str(folder), device="cpu"))


@pytest.fixture
def policy() -> Any:
    return policy_of("qwen2_vl")[0]


def asked(policy: Any, source: Any) -> Any:
    """Return the messages of a question about an image, as a run reads them."""
    return policy.tokenizer.read_row({"prompt": QUESTION, "images": [source]}, "prompt", "row")["prompt"]


def score(reward: VisionRewardModel, messages: Any) -> float:
    (found,) = reward([""], ["red"], [[*messages, {"role": "assistant", "content": "red"}]])
    assert found is not None
    return found


def write(path: Path, image: Image.Image, at_s: int) -> None:
    image.save(path)
    os.utime(path, (at_s, at_s))


def test_a_file_that_changes_is_never_scored_in_place_of_the_image_that_the_policy_saw(
    reward: VisionRewardModel, policy: Any, folder: Path, tmp_path: Path
) -> None:
    # Images that no other test reads, whose stores may still be in memory.
    one, other = (scored_alone(folder, picture(seed), TEXT) for seed in (41, 42))
    assert abs(one - other) > 1e-3
    file = tmp_path / "shown.png"
    write(file, picture(41), 100)
    messages = asked(policy, file)
    assert score(reward, messages) == pytest.approx(one, abs=1e-5)
    write(file, picture(41), 200)  # the same pixels, written again
    assert score(reward, messages) == pytest.approx(one, abs=1e-5)
    write(file, picture(42), 300)
    for call in (reward, VisionRewardModel(reward.config)):  # one that has read the image before, and one that has not
        with pytest.raises(DataError, match=r"shown\.png': has changed since the run read it"):
            score(call, messages)
    assert score(reward, asked(policy, file)) == pytest.approx(other, abs=1e-5)
    write(tmp_path / "copy.png", picture(41), 100)  # a row that is read later has the pixels in another file
    assert score(reward, asked(policy, tmp_path / "copy.png")) == pytest.approx(one, abs=1e-5)
    assert score(reward, messages) == pytest.approx(one, abs=1e-5)


def test_images_that_a_reward_model_knows_are_not_opened_again(
    reward: VisionRewardModel, policy: Any, tmp_path: Path
) -> None:
    write(tmp_path / "shown.png", picture(1), 100)
    messages = asked(policy, tmp_path / "shown.png")
    first, known = score(reward, messages), len(reward.scorer.tokenizer.images)
    (tmp_path / "shown.png").unlink()
    assert score(reward, messages) == first
    assert len(reward.scorer.tokenizer.images) == known


def test_an_image_that_several_runs_read_is_taken_from_one_whose_file_is_as_it_was(
    reward: VisionRewardModel, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "shown.png", picture(1), 100)
    runs = [policy_of("llava")[0] for _ in range(3)]
    messages = [asked(run, source) for run, source in zip(runs, (tmp_path / "shown.png", picture(1)) * 2, strict=False)]
    write(tmp_path / "shown.png", picture(2), 200)
    assert len([each for each in STORES if messages[0][0]["content"][0]["image_token"] in each]) >= 3
    assert score(reward, messages[0]) == pytest.approx(scored_alone(folder, picture(1), TEXT), abs=1e-5)


def test_rows_that_the_reward_models_own_tokenizer_read_are_scored(reward: VisionRewardModel, folder: Path) -> None:
    messages = asked(reward.scorer, picture(7))
    assert score(reward, messages) == pytest.approx(scored_alone(folder, picture(7), TEXT), abs=1e-5)


def test_an_image_of_no_row_is_refused(reward: VisionRewardModel) -> None:
    with pytest.raises(DataError, match="shows the image 40000001, which no row of the run has"):
        score(reward, [{"role": "user", "content": [{"type": "image", "image_token": 2**30 + 1}]}])


@pytest.mark.slow
def test_without_its_package_the_reward_names_the_extra_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: {path: there-is-none}\ntrainer: {name: grpo}\n"
        "data: {prompts: [a], reward_fn: {fn: vision_reward_model, path: judge, device: cpu}}\n"
    )
    code = (
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'rlcore_reward' else found(name, *rest)\n"
        "from rlcore.cli import main\nraise SystemExit(main(['train', 'run.yaml']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert "vision_reward_model needs the package rlcore-reward, which is not installed: pip install" in done.stderr
    assert "'rlcore-vision[reward]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_its_package_the_reward_has_the_names_of_its_options() -> None:
    assert set(image_rows.OPTIONS) == {field.name for field in attrs.fields(VisionRewardConfig)}
