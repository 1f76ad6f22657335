"""Runs of DDPO on the tiny pipeline: what they learn from, what they write, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ddpo_making import TRAINER, train
from PIL import Image

import rlcore
from rlcore.cli import main
from rlcore.config import structure
from rlcore.config.yaml_files import dump_yaml
from rlcore.errors import RLCoreError
from rlcore_ddpo import diffusers_classes as diffusers
from rlcore_ddpo.config import DDPOConfig
from rlcore_ddpo.image_sampling import make_tiles, write_grid
from rlcore_ddpo.pipeline_loading import make_tiny_pipeline
from rlcore_ddpo.trainer import DDPOTrainer
from rlcore_report.samples_on_page import read_images

OPTIONS = {name: value for name, value in TRAINER.items() if name != "name"}


def noiseless() -> diffusers.StableDiffusionPipeline:
    return make_tiny_pipeline(steps_offset=0, set_alpha_to_one=True)


def with_unknown_lora() -> dict[str, Any]:
    return {"path": make_tiny_pipeline(), "lora": {"rank": 2}}


def with_a_scheduler_of_flows(pipeline: Any) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    pipeline.scheduler = FlowMatchEulerDiscreteScheduler()


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def test_before_the_first_update_the_ratio_is_exactly_1(tmp_path: Path) -> None:
    metrics = train(tmp_path).metrics
    assert metrics["policy/ratio_mean"] == 1.0
    assert metrics["policy/approx_kl"] == metrics["policy/clip_fraction"] == 0.0
    assert metrics["grad/norm"] > 0


def test_a_step_without_noise_is_left_out_of_the_loss(tmp_path: Path) -> None:
    pipeline = make_tiny_pipeline(steps_offset=0, set_alpha_to_one=True)
    calls: list[bool] = []
    pipeline.unet.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    metrics = train(tmp_path, model=pipeline).metrics
    assert (calls.count(False), calls.count(True)) == (3, 2)  # three steps, of which the last has no noise
    assert metrics["policy/ratio_mean"] == 1.0


def test_each_image_is_trained_on_its_own_random_share_of_the_denoising_steps(tmp_path: Path) -> None:
    trainer = train(tmp_path, trainer={"steps": 6, "timestep_fraction": 0.5}).run
    sampled = DDPOTrainer(structure(DDPOConfig, {**OPTIONS, "steps": 6, "timestep_fraction": 0.5}), trainer)
    chosen = sampled._choose_steps(40, seed=0)
    assert chosen.shape == (40, 3)
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert set(chosen.flatten().tolist()) == set(range(6))
    assert len({tuple(sorted(row)) for row in chosen.tolist()}) > 5


def test_images_that_reach_the_reward_are_those_that_the_weights_paint(tmp_path: Path) -> None:
    seen: list[Any] = []

    def watch(images: torch.Tensor, prompts: list[str], colour: list[str]) -> list[float]:
        assert images.shape == (4, 3, 8, 8)
        assert images.dtype == torch.float32
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        seen.append((prompts, colour))
        return [0.0, 1.0, None, 2.0]

    rows = [{"prompt": "a cat", "colour": "red"}, {"prompt": "a dog", "colour": "blue"}]
    metrics = train(tmp_path, prompts=rows, reward_fn=watch).metrics
    assert sorted(zip(*seen[0], strict=True)) == [("a cat", "red")] * 2 + [("a dog", "blue")] * 2
    assert (metrics["reward/unscored"], metrics["reward/mean"]) == (1.0, 1.0)


def test_a_reward_function_may_receive_pil_images(tmp_path: Path) -> None:
    def width(images: list[Image.Image]) -> list[float]:
        return [float(image.size[0]) + i for i, image in enumerate(images)]

    assert train(tmp_path, reward_fn=width, trainer={"images": "pil"}).metrics["reward/mean"] == 9.5


def test_evaluations_write_a_grid_and_the_place_of_every_image(tmp_path: Path) -> None:
    evaluation = {"at_start": True, "at_end": True, "every": 1, "samples": 3}
    result = train(tmp_path, steps=2, eval=evaluation, metric_fn=lambda images: {"red": images[:, 0].mean((1, 2))})
    grids = sorted((tmp_path / "run/images").iterdir())
    assert [grid.name for grid in grids] == [f"step-{step:08d}.png" for step in (0, 1, 2)]
    assert Image.open(grids[0]).size == (3 * 8, 2 * 8)
    rows = [json.loads(line) for line in (tmp_path / "run/completions.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 6
    assert [row["prompt"] for row in rows[:6]] == ["a cat"] * 3 + ["a dog"] * 3
    assert rows[5]["output"] == "images/step-00000000.png, image 6"
    last = rows[-6:]
    assert result.metrics["eval/reward/mean"] == pytest.approx(sum(row["reward"] for row in last) / 6)
    assert result.metrics["eval/red"] == pytest.approx(sum(row["red"] for row in last) / 6)
    assert metrics_of(tmp_path)[0]["eval/reward/mean"] != result.metrics["eval/reward/mean"]


def test_prompts_longer_than_the_text_encoder_reads_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, prompts=["a cat " * 9, "a dog"])
    written = capsys.readouterr().err
    assert "the text encoder reads only the start of prompts" in written
    assert "prompts=1" in written
    assert "max_tokens=14" in written


def test_grids_of_many_images_are_small_enough_for_a_report(tmp_path: Path) -> None:
    images = torch.rand(64, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    shares = images[0::2], images[1::2]  # of two ranks
    tiles = [tile for pair in zip(*(make_tiles(each, 64, columns=8) for each in shares), strict=True) for tile in pair]
    for name in ("step-00000000.png", "step-00000001.png"):
        write_grid(tiles, tmp_path / name, columns=8)
    assert Image.open(tmp_path / "step-00000000.png").size == (8 * 118, 8 * 118)
    assert len(read_images(tmp_path)) == 2


@pytest.mark.slow
def test_the_report_shows_the_grid_of_every_evaluation(tmp_path: Path, browser: Any) -> None:
    evaluation = {"at_start": True, "at_end": True, "every": 1, "samples": 3}
    result = train(tmp_path, steps=2, eval=evaluation)
    page, requests = browser.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((result.run_dir / "report.html").as_uri())
    page.wait_for_selector("#images img")
    found = page.locator("#images img")
    assert found.evaluate_all("all => all.map((each) => [each.alt, each.complete, each.naturalWidth])") == [
        [f"grid of images, evaluation at step {step}", True, 3 * 8] for step in (0, 1, 2)
    ]
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_a_run_ends_with_a_pipeline_that_plain_diffusers_loads(tmp_path: Path) -> None:
    result = train(tmp_path)
    loaded = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "run/model")
    for name, weight in result.policy.module.state_dict().items():
        assert torch.equal(loaded.unet.state_dict()[name], weight)
    start = make_tiny_pipeline()
    assert torch.equal(loaded.vae.decoder.conv_in.weight, start.vae.decoder.conv_in.weight)
    assert not torch.equal(loaded.unet.conv_in.weight, start.unet.conv_in.weight)


@pytest.mark.slow
def test_lora_layers_are_saved_alone_and_merged(tmp_path: Path) -> None:
    train(
        tmp_path,
        model={"path": make_tiny_pipeline(), "lora": {"r": 2, "lora_alpha": 8}},
        steps=2,
        checkpoint={"every": 1},
    )
    (file,) = (tmp_path / "run/checkpoints/00000002/model").iterdir()
    assert file.name == "pytorch_lora_weights.safetensors"
    merged = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path / "run/model")
    beside = make_tiny_pipeline()
    base = beside.unet.state_dict()["down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight"].clone()
    beside.load_lora_weights(tmp_path / "run/model/adapter")
    noise, text = torch.randn(1, 4, 4, 4), torch.randn(1, 5, 16)
    with torch.no_grad():
        ours, theirs = (each.unet(noise, 7, text, return_dict=False)[0] for each in (merged, beside))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    now = merged.unet.state_dict()["down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight"]
    assert not torch.equal(base, now)


@pytest.mark.nightly
def test_yaml_and_the_command_line_train_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tiny_pipeline().save_pretrained(tmp_path / "sd")
    values = {
        "model": {"path": str(tmp_path / "sd")}, "trainer": TRAINER,
        "data": {"prompts": ["a cat"], "reward_fn": "jpeg_compressibility"},
        "run": {"root": str(tmp_path), "name": "run", "steps": 1},
    }  # fmt: skip
    (tmp_path / "ddpo.yaml").write_text(dump_yaml(values))
    assert main(["train", str(tmp_path / "ddpo.yaml"), "trainer.guidance=1", "eval.at_end=false"]) == 0
    assert "diffusers.StableDiffusionPipeline.from_pretrained" in capsys.readouterr().out
    assert main(["train", str(tmp_path / "run/config.yaml"), "run.resume=auto", "run.steps=2"]) == 0
    assert len(metrics_of(tmp_path)) == 2
    assert main(["plan", str(tmp_path / "ddpo.yaml"), "--device-memory", "1MB"]) == 0
    assert "trainer.micro_batch_size=1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trainer": {"eta": 0}}, "trainer.eta = 0: must lie in (0, 1] (noise of a denoising step"),
        ({"trainer": {"negative_prompt": None}}, "guidance needs the embedding of a negative prompt"),
        ({"trainer": {"cfg_in_training": False}}, "set guidance to 1, or cfg_in_training to true"),
        ({"trainer": {"stats": "prompt", "stats_size": 8}}, "stats_min_count = 16: no prompt would ever have so many"),
        ({"trainer": {"images": "numpy"}}, "trainer.images = 'numpy': must be one of 'tensor', 'pil'"),
        ({"trainer": {"steps": 1001}}, "trainer.steps = 1001: the scheduler has 1000 timesteps"),
        ({"reward_fn": lambda images: [1.0]}, "returned 1 values for 4 samples"),
        ({"reward_fn": lambda images: images.sum((1, 2, 3)) * float("nan")}, "returned nan for sample 0"),
        ({"reward_fn": lambda images: images[0].convert("L")}, "trainer.images=pil passes a list of PIL images"),
        ({"model": {"path": "sd", "architecture": "causal_lm"}}, "this trainer trains an image pipeline"),
        ({"model": with_unknown_lora}, "model.lora = "),
        ({"model": torch.nn.Linear(1, 1)}, "takes a StableDiffusionPipeline, its folder or a hub id"),
        ({"trainer": {"rollouts": 4, "steps": 1}, "model": noiseless}, "no step of the pipeline's scheduler has noise"),
    ],
)
def test_options_and_models_that_image_training_cannot_use_are_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    if callable(options.get("model")) and not isinstance(options["model"], torch.nn.Module):
        options = {**options, "model": options["model"]()}
    with pytest.raises(RLCoreError) as caught:
        train(tmp_path, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_a_scheduler_of_flows, "no noise schedule"),
        (lambda pipeline: setattr(pipeline, "unet", None), "the pipeline has no unet"),
        (lambda pipeline: pipeline.unet.register_to_config(in_channels=9), "pipelines for inpainting"),
    ],
)
def test_a_pipeline_of_another_kind_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    pipeline = make_tiny_pipeline()
    change(pipeline)
    with pytest.raises(RLCoreError, match=says):
        train(tmp_path, model=pipeline)


@pytest.mark.parametrize(
    ("missing", "says"), [("unet", "has no folder 'unet'"), ("model_index.json", "has no model_i")]
)
def test_a_folder_without_a_part_of_the_pipeline_is_refused(tmp_path: Path, missing: str, says: str) -> None:
    make_tiny_pipeline().save_pretrained(tmp_path / "sd")
    shutil.rmtree(tmp_path / "sd/unet") if missing == "unet" else (tmp_path / "sd" / missing).unlink()
    with pytest.raises(RLCoreError, match=says):
        train(tmp_path, model=str(tmp_path / "sd"))


def test_the_noise_schedule_of_another_scheduler_is_kept(tmp_path: Path) -> None:
    from diffusers import PNDMScheduler

    pipeline = make_tiny_pipeline()
    ours = pipeline.scheduler.alphas_cumprod
    pipeline.scheduler = PNDMScheduler.from_config(pipeline.scheduler.config)
    result = train(tmp_path, model=pipeline)
    assert type(result.policy.pipeline.scheduler).__name__ == "DDIMScheduler"
    assert torch.equal(result.policy.pipeline.scheduler.alphas_cumprod, ours)


def test_a_trainer_of_language_models_refuses_an_image_pipeline(tmp_path: Path) -> None:
    model = {"path": make_tiny_pipeline(), "architecture": "stable_diffusion"}
    with pytest.raises(RLCoreError, match="builds an image pipeline, and this trainer trains a language model"):
        rlcore.train(model, trainer="sft", samples=["a cat"], run={"root": str(tmp_path)})


@pytest.mark.slow
def test_a_second_run_continues_with_the_lora_layers_of_a_pipeline_in_memory(tmp_path: Path) -> None:
    pipeline = make_tiny_pipeline()
    for steps in (1, 2):
        model = {"path": pipeline, "lora": {"r": 2}}
        result = train(tmp_path, model=model, steps=steps, run={"resume": "auto"})
    whole = train(tmp_path / "whole", model={"path": make_tiny_pipeline(), "lora": {"r": 2}}, steps=2)
    for name, weight in whole.policy.module.named_parameters():
        assert torch.equal(weight, dict(result.policy.module.named_parameters())[name]), name
