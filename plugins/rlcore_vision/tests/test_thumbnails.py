"""A run keeps small copies of the images that its completions show, for its report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from vision_making import answered, picture, policy_of, prompts_of

import rlcore
from rlcore.types import Trajectories
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_vision import model
from rlcore_vision.model import FOLDER, copy_images, images_of
from rlcore_vision.tiny_families import FAMILIES


def names(folder: Path) -> set[str]:
    return {file.stem for file in (folder / FOLDER).glob("*.png")}


def batch_of(policy: Any, seeds: range, size: int = 200) -> Trajectories:
    rows = [{"prompt": "red", "images": [picture(seed, size, 2 * size)]} for seed in seeds]
    return answered(policy, prompts_of(policy, rows))


def test_a_run_copies_the_images_of_rollouts_and_of_evaluations(tmp_path: Path) -> None:
    config, processor = FAMILIES["llava"]()
    asked = [[{"prompt": "red", "images": [picture(seed)]}] for seed in (1, 2)]
    result = rlcore.train(
        config, tokenizer=processor, trainer={"name": "grpo", "rollouts": 4, "num_generations": 4}, prompts=asked[0],
        eval_prompts=asked[1], reward_fn=lambda outputs: list(map(len, outputs)), gen={"max_new_tokens": 2},
        eval={"show": 0}, run={"root": str(tmp_path), "name": "run", "steps": 1},
    )  # fmt: skip
    images = result.policy.tokenizer.images
    expected = {f"{images.add(picture(seed), ''):08x}" for seed in (1, 2)}
    assert names(result.run_dir) == expected


def test_copies_are_small_and_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, _ = policy_of("llava")
    copy_images(tmp_path, images_of(batch_of(policy, range(1))))
    (file,) = (tmp_path / FOLDER).glob("*.png")
    with Image.open(io.BytesIO(file.read_bytes())) as image:
        assert image.size == (96, 48)
    most = 3 * file.stat().st_size
    monkeypatch.setattr(model, "MAX_BYTES", most)
    for seeds in (range(1, 8), range(8, 12)):
        copy_images(tmp_path, images_of(batch_of(policy, seeds)))
    sizes = [file.stat().st_size for file in (tmp_path / FOLDER).glob("*.png")]
    assert len(sizes) > 1
    assert sum(sizes) <= most


def test_an_image_that_cannot_be_opened_any_more_is_left_out(tmp_path: Path) -> None:
    policy, _ = policy_of("llava")
    files = [tmp_path / f"{seed}.png" for seed in (97, 98)]
    for seed, file in enumerate(files, 97):
        picture(seed).save(file)
    batch = answered(policy, prompts_of(policy, [{"prompt": "red", "images": [file]} for file in files]))
    files[0].unlink()
    picture(99).save(files[1])
    copy_images(tmp_path, images_of(batch))
    assert names(tmp_path) == set()


@pytest.mark.slow
def test_images_of_the_rows_of_other_ranks_are_copied(tmp_path: Path) -> None:
    """Each of two ranks samples the answers to one of two prompts."""
    shown = call_on_two_ranks("test_thumbnails:shown_by_two_ranks", {"folder": str(tmp_path)}, what="two ranks")
    assert len(set(shown["expected"])) == 2
    assert shown["files"] == sorted(shown["expected"])


def shown_by_two_ranks(folder: str) -> dict[str, list[str]]:
    """Sample a round of two groups, and return the images that are copied and those of both prompts."""
    config, processor = FAMILIES["llava"]()
    result = rlcore.train(
        config, tokenizer=processor, trainer={"name": "grpo", "rollouts": 8, "num_generations": 4},
        prompts=[{"prompt": "red", "images": [picture(seed)]} for seed in (1, 2)],
        reward_fn=lambda outputs: list(map(len, outputs)), gen={"max_new_tokens": 2}, eval={"show": 0},
        run={"root": folder, "name": "run", "steps": 1},
    )  # fmt: skip
    images = result.policy.tokenizer.images
    return {
        "expected": [f"{images.add(picture(seed), ''):08x}" for seed in (1, 2)],
        "files": sorted(names(result.run_dir)),
    }
