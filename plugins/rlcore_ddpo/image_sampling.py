"""The images of rounds and evaluations: sampled, scored, and shown as a grid in the run's folder.

Also in this file: rewards of images: the size as a JPEG file, and brightness; conversion between tensors and PIL
images.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from PIL import Image
from torch import Tensor

from rlcore.errors import RewardError
from rlcore.logging import get_logger
from rlcore.profiling import phase
from rlcore.training import Round, Run, measure_outputs, summarise
from rlcore.types import Metrics, Prompt, Trajectories
from rlcore_ddpo.config import DDPOConfig
from rlcore_ddpo.denoising import Denoiser, noise_of

QUALITY = 95
"""JPEG quality of Black et al. 2023."""


def to_pil(images: Tensor) -> list[Image.Image]:
    """Return float[n, 3, H, W] in [0, 1] as PIL images."""
    pixels = (images.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return [Image.fromarray(each) for each in pixels.contiguous().numpy()]


def jpeg_incompressibility(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return the size of each image as a JPEG file of quality 95, in kB (Black et al. 2023, arXiv:2305.13301)."""
    return [_jpeg_bytes(image) / 1000 for image in (to_pil(images) if isinstance(images, Tensor) else images)]


def jpeg_compressibility(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return minus the size of each image as a JPEG file, in kB."""
    return [-size for size in jpeg_incompressibility(images)]


def brightness(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return the mean over the pixels and colours of each image, in [0, 1]."""
    if isinstance(images, Tensor):
        means: list[float] = images.double().flatten(1).mean(1).tolist()
        return means
    return [sum(_means(image)) / 3 for image in images]


def example_outputs() -> dict[str, object]:
    """Return twelve images for the conformance kit."""
    generator = torch.Generator().manual_seed(0)
    noise, level = torch.rand(12, 3, 8, 8, generator=generator), torch.linspace(0, 1, 12).view(-1, 1, 1, 1)
    return {"images": level * noise + (1 - level) * noise.mean((2, 3), keepdim=True)}


def _jpeg_bytes(image: Image.Image) -> int:
    file = io.BytesIO()
    image.convert("RGB").save(file, format="JPEG", quality=QUALITY)
    return file.tell()


def _means(image: Image.Image) -> list[float]:
    pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8).view(-1, 3)
    means: list[float] = (pixels.double().mean(0) / 255).tolist()
    return means


for _reward in (jpeg_compressibility, jpeg_incompressibility, brightness):
    _reward.example_outputs = example_outputs  # type: ignore[attr-defined]  # read by the conformance kit


FOLDER = "images"
LARGEST_TILE = 256
"""Height and width of an image in a grid, in pixels, at the most."""
LARGEST_GRID = 900_000
"""Pixels of a grid at the most: a report embeds at least the first and the last grid of a run."""


class ImageSampler:
    """Samples images of this process's share of prompts, and scores them.

    Args:
        denoiser: the policy.
        config: options of the trainer.
        run: the run.
    """

    def __init__(self, denoiser: Denoiser, config: DDPOConfig, run: Run) -> None:
        self.denoiser, self.config, self.run = denoiser, config, run
        per_rank = -(-config.batch_size // run.ranks.world)
        self.size = run.config.gen.batch_size or config.micro_batch_size or per_rank

    def sample(self, indices: Sequence[int], number: int) -> Round:
        """Return the images of a round, and their scores.

        Args:
            indices: the prompts of the whole round.
            number: the round's number, which decides the noise.

        Returns:
            Sequences of S actions, whose tokens are the timesteps, with the columns `scores` and `prompt` (long[B],
            index of the prompt), and of the images of this process `latents` (float[K, S + 1, C, h, w]) and
            `old_logprobs` (float[K, S]).
        """
        begun, mine = time.perf_counter(), self.run.sampling.dealt(range(len(indices)))
        prompts = [self.run.prompts[indices[i]] for i in mine]
        latents, logprobs, images = self._denoise(prompts, [(self.run.config.run.seed, number, i) for i in mine])
        sampled = time.perf_counter()
        with self._naming_the_form():
            scored = self.run.sampling.score_outputs(prompts, {"images": self._shaped(images)})
        times = {"time/sample_s": sampled - begun, "time/score_s": time.perf_counter() - sampled}
        schedule, device = self.denoiser.schedule, latents.device
        count = (len(mine), len(schedule))
        batch = Trajectories(
            tokens=schedule.timesteps.expand(count), mask=torch.ones(count, dtype=torch.bool, device=device),
            action_mask=schedule.is_random.expand(count), ended=torch.ones(len(mine), dtype=torch.bool, device=device),
            columns={"latents": latents, "old_logprobs": logprobs},
        )  # fmt: skip
        scored = attrs.evolve(scored, scores=scored.scores.to(device), times=times)
        found = self.run.sampling.form_round(batch, scored, at_least=2)
        return found.with_columns(prompt=torch.tensor(indices, device=device)[found["prompt"]])

    def evaluate(self) -> tuple[Metrics, list[dict[str, Any]]]:
        """Sample images of the evaluation prompts with the same noise each time; return metrics and rows.

        The images are written as a grid to `images/`, one row for each prompt, and the rows name their places in it.
        Rank 0 returns the rows of all ranks, the others none.
        """
        run, samples = self.run, self.run.config.eval.samples
        prompts = [prompt for prompt in run.data.eval_prompts for _ in range(samples)]
        mine = run.ranks.share(len(prompts))
        found: list[tuple[int, dict[str, object], Image.Image]] = []
        if mine:
            own = [prompts[i] for i in mine]
            images = self._denoise(own, [(run.config.run.seed, "evaluation", i) for i in mine])[2]
            with self._naming_the_form():
                _, rows = measure_outputs(run, own, {"images": self._shaped(images)})
            found = list(zip(mine, rows, make_tiles(images, len(prompts), columns=samples), strict=True))
        every = sorted(run.ranks.gather_to_main(found), key=lambda each: each[0])
        file = Path(FOLDER) / f"step-{run.step:08d}.png"
        if run.ranks.is_main:
            write_grid([tile for _, _, tile in every], run.dir / file, columns=samples)
        rows = [{"output": f"{file.as_posix()}, image {i + 1}", **row} for i, row, _ in every]
        return run.ranks.on_main(lambda: summarise(rows)), rows

    def _denoise(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int | str, ...]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents, log-probs and, on the CPU, the images of prompts; `keys` decide the noise."""
        shape = (len(self.denoiser.schedule) + 1, *self.denoiser.model.latent_shape)
        parts = []
        for start in range(0, len(prompts), self.size):
            texts = [prompt.text for prompt in prompts[start : start + self.size]]
            latents, logprobs = self.denoiser.sample(texts, noise_of(keys[start : start + self.size], shape))
            with phase("decode"):
                parts.append((latents, logprobs, self.denoiser.model.decode(latents[:, -1]).cpu()))
        latents, logprobs, images = (torch.cat(each) for each in zip(*parts, strict=True))
        return latents, logprobs, images

    def _shaped(self, images: Tensor) -> Tensor | list[Image.Image]:
        """Return the images in the form that reward functions receive."""
        return to_pil(images) if self.config.images == "pil" else images

    @contextmanager
    def _naming_the_form(self) -> Iterator[None]:
        """Add the form of the images to errors of functions that may have expected the other one."""
        try:
            yield
        except RewardError as error:
            if not isinstance(error.__cause__, (AttributeError, TypeError)):
                raise
            forms = {"tensor": "a float32 tensor [n, 3, H, W]", "pil": "a list of PIL images"}
            other = "pil" if self.config.images == "tensor" else "tensor"
            raise RewardError(
                f"{error}\n  its images are {forms[self.config.images]}; trainer.images={other} passes {forms[other]}"
            ) from error.__cause__


def make_tiles(images: Tensor, count: int, *, columns: int) -> list[Image.Image]:
    """Return images in the size that they have in a grid.

    Args:
        images: float[n, 3, H, W], in [0, 1].
        count: number of images in the grid.
        columns: images in a row; 1 for about as many as there are rows.
    """
    rows, columns = _shape(count, columns)
    height, width = images.shape[2:]
    share = min(1.0, LARGEST_TILE / max(width, height), (LARGEST_GRID / (rows * columns * width * height)) ** 0.5)
    size = max(1, int(share * width)), max(1, int(share * height))
    return [image.resize(size) for image in to_pil(images)]


def _shape(count: int, columns: int) -> tuple[int, int]:
    columns = columns if columns > 1 else max(1, round(count**0.5))
    return -(-count // columns), columns


def write_grid(tiles: Sequence[Image.Image], file: Path, *, columns: int) -> None:
    """Write images of one size as one PNG file; if it cannot be written, log the reason.

    Args:
        tiles: the images.
        file: its folder is created.
        columns: images in a row, as in `make_tiles`.
    """
    rows, columns = _shape(len(tiles), columns)
    width, height = tiles[0].size
    grid = Image.new("RGB", (columns * width, rows * height))
    for i, tile in enumerate(tiles):
        grid.paste(tile, (i % columns * width, i // columns * height))
    try:
        file.parent.mkdir(exist_ok=True)
        grid.save(file)
    except OSError as error:
        get_logger("ddpo").warning("the grid of images could not be written", file=str(file), reason=str(error))
