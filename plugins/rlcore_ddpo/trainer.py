"""DDPO's loop: sample images, compare their rewards, learn from their denoising steps, yield.

Also in this file: the parts of a round for `rlcore plan`, which runs them on fake tensors of the same sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from rlcore import ops
from rlcore.config import evolve, unstructure
from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore.training import Meter, Round, Run, disable_dropout
from rlcore.types import Metrics, State, Trajectories
from rlcore_ddpo.config import KIND, DDPOConfig, check
from rlcore_ddpo.denoising import Denoiser
from rlcore_ddpo.image_sampling import ImageSampler
from rlcore_ddpo.loss import PromptStatistics, clipped_loss, standardised

if TYPE_CHECKING:
    from rlcore_ddpo.image_pipeline import ImagePipeline

FEW = 2
"""Denoising steps that are run; the others take room for their latents only."""


def workload(config: DDPOConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run, in images."""
    return {
        "batch_size": config.batch_size, "micro_batch_size": config.micro_batch_size, "num_sampled": config.rollouts,
        "num_held": config.rollouts,
    }  # fmt: skip


def rehearse(model: ImagePipeline, config: DDPOConfig, settings: TrainConfig, world: int) -> Mapping[str, Any]:
    """Return the parts of a round.

    Args:
        model: the pipeline, whose weights may be fake.
        config: options of the trainer.
        settings: the whole configuration.
        world: number of processes.
    """
    per_step, own = -(-config.batch_size // world), -(-config.rollouts // world)
    passed = min(config.micro_batch_size or per_step, per_step)
    at_once = settings.gen.batch_size or config.micro_batch_size or per_step
    prompts, note = _num_eval_prompts(settings)
    evaluated = -(-prompts * settings.eval.samples // world)
    scene = _Round(model, config)
    return {
        "frozen": [model.pipeline.vae, model.pipeline.text_encoder],
        "sampling": {
            "sampling": lambda: scene.sample(own, at_once), "evaluation": lambda: scene.sample(evaluated, at_once),
        },
        "sampled_at_once": min(at_once, own), "loss": lambda: scene.loss(passed), "num_passes": -(-per_step // passed),
        "num_held_bytes": own * scene.latent_bytes, "notes": note,
    }  # fmt: skip


def _num_eval_prompts(settings: TrainConfig) -> tuple[int, tuple[str, ...]]:
    """Return the number of evaluation prompts, and a note if it is assumed."""
    data, most = settings.data, settings.eval.num_prompts
    given = data.prompts if data.eval_prompts is None else data.eval_prompts
    if not isinstance(given, list):
        return most, (f"the number of evaluation prompts is not read here: {most} are assumed, by eval.num_prompts",)
    return len(given) if data.eval_prompts is not None else min(len(given), most), ()


class _Round:
    """The tensors of a round.

    Attributes:
        latent_bytes: bytes of the latents of one image, at all denoising steps.
    """

    def __init__(self, model: ImagePipeline, config: DDPOConfig) -> None:
        self.model, self.config = model, config
        self.denoiser = Denoiser(model, evolve(config, steps=min(FEW, config.steps)))
        self.latent_bytes = 4 * (config.steps + 1) * math.prod(model.latent_shape)

    def sample(self, count: int, at_once: int) -> None:
        """Allocate what sampling `count` images does: in its last batch, and when the batches are joined."""
        size, shape, scale = min(at_once, count), self.model.latent_shape, self.model.pipeline.vae_scale_factor
        of_one = self.latent_bytes + 4 * 3 * shape[1] * shape[2] * scale**2
        run = len(self.denoiser.schedule) + 1
        left_out = size * (self.latent_bytes - 4 * run * math.prod(shape))
        earlier, latents_left, noise_left = _room((count - size) * of_one), _room(left_out), _room(left_out)
        latents, _ = self.denoiser.denoise(self._conditions(size), torch.empty(size, run, *shape))
        del noise_left
        images = self.model.decode(latents[:, -1]).cpu()
        joined = _room(count * of_one)
        del earlier, latents_left, images, joined

    def loss(self, count: int) -> Tensor:
        """Return the loss of images at one denoising step."""
        before, index = torch.empty(count, *self.model.latent_shape), torch.zeros(count, dtype=torch.long)
        logprobs = self.denoiser.logprobs(before, torch.empty_like(before), index, self._conditions(count))
        losses = clipped_loss(logprobs, torch.empty(count), torch.empty(count), clip_range=self.config.clip_range)
        return losses.sum()

    def _conditions(self, count: int) -> Tensor:
        """Return embeddings of prompts, as `Denoiser.conditions` does, which are not computed."""
        encoder: Any = self.model.pipeline.text_encoder
        rows = count if self.config.guidance == 1 else 2 * count
        return torch.empty(
            rows, encoder.config.max_position_embeddings, encoder.config.hidden_size, dtype=encoder.dtype
        )


def _room(size: int) -> Tensor:
    """Return a float32 tensor of so many bytes."""
    return torch.empty(size // 4)


def warn_of_unused(gen: SamplingConfig) -> None:
    """Warn of options of `gen` that have no effect on images: all but `batch_size`."""
    plain, default = (unstructure(evolve(each, beta=each.beta or 0.0)) for each in (gen, SamplingConfig()))
    unused = [name for name, value in plain.items() if name != "batch_size" and value != default[name]]
    if unused:
        get_logger("ddpo").warning("options of gen have no effect on images", options=unused)


def warn_of_truncation(run: Run, model: ImagePipeline) -> None:
    """Warn of prompts that the text encoder does not read to their end."""
    limit = model.tokenizer.model_max_length - model.tokenizer.num_special_tokens_to_add()
    count = sum(len(prompt.tokens) > limit for prompt in run.prompts)
    if count:
        get_logger("ddpo").warning("the text encoder reads only the start of prompts", prompts=count, max_tokens=limit)


class DDPOTrainer:
    """Denoising diffusion policy optimisation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("reward_fn", "prompts")
    headline = ("eval/reward/mean", "reward/mean")
    architecture = "stable_diffusion"
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}
    workload, rehearse = staticmethod(workload), staticmethod(rehearse)

    def __init__(self, config: DDPOConfig, run: Run) -> None:
        check(config, run.ranks.world)
        warn_of_unused(run.config.gen)
        self.config, self.run, self.num_rounds = config, run, 0
        self._model = cast("ImagePipeline", run.build(KIND))
        warn_of_truncation(run, self._model)
        disable_dropout(self._model.module)
        self._model.module.train()
        self.denoiser = Denoiser(self._model, config)
        if not bool(self.denoiser.schedule.is_random.any()):
            raise ConfigError(
                f"trainer.steps = {config.steps}: no step of the pipeline's scheduler has noise, so there is nothing "
                "to learn; set more steps"
            )
        self.sampler = ImageSampler(self.denoiser, config, run)
        self.order = run.data.order(run.prompts)
        self.statistics = PromptStatistics(size=config.stats_size, min_count=config.stats_min_count)
        run.plan_steps(len(run.prompts) / config.rollouts)
        updates = config.epochs * -(-config.rollouts // config.batch_size)
        self.updater = run.updater(self._model, config.optimizer, updates_per_step=updates)
        run.add_evaluation(self.sampler.evaluate)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each round, when everything it sampled has been learned from."""
        while True:
            batch, metrics = self.rollout()
            metrics |= self.update(batch)
            self.num_rounds += 1
            yield metrics | {"progress/epoch": self.order.epoch}

    def policy(self) -> ImagePipeline:
        """Return the pipeline."""
        return self._model

    def rollout(self) -> tuple[Round, Metrics]:
        """Sample and score the images of a round, and return them with their advantages."""
        batch = self.sampler.sample(self.order.take(self.config.rollouts), self.num_rounds)
        scores, texts = batch["scores"], [self.run.prompts[i].text for i in batch["prompt"].tolist()]
        if self.config.stats == "prompt":
            advantages = self.statistics.advantages(texts, scores)
        else:
            advantages = standardised(scores, scores)
        advantages = advantages.clamp(-self.config.adv_clip, self.config.adv_clip).float()
        batch = batch.with_columns(advantages=advantages)
        self.run.observers.on_rollout(self.run, batch.own)
        metrics = {name: value for name, value in batch.metrics.items() if not name.startswith("response/")}
        return batch, metrics | {
            "advantage/mean": float(advantages.mean()), "advantage/std": float(advantages.std(correction=0)),
        }  # fmt: skip

    def update(self, batch: Round) -> Metrics:
        """Learn from a round: `epochs` passes over it, each image in one optimizer step of a pass."""
        begun, meter, skipped = time.perf_counter(), self.updater.meter(), self.updater.num_skipped
        for epoch in range(self.config.epochs):
            seed = (self.run.config.run.seed * 1_000_003 + self.num_rounds) * 101 + epoch
            steps = batch.mine(self._choose_steps(len(batch), seed)).to(self.updater.device)
            for minibatch in batch.with_columns(chosen=steps).minibatches(self.config.batch_size, seed=seed):
                self._learn(minibatch, meter)
        return meter.means() | {
            "policy/skipped": float(self.updater.num_skipped - skipped), "lr": self.updater.lr,
            "time/update_s": time.perf_counter() - begun,
        }  # fmt: skip

    def _choose_steps(self, count: int, seed: int) -> Tensor:
        """Return the denoising steps that a pass learns from, in random order, of each image: long[count, K]."""
        random = self.denoiser.schedule.is_random.cpu().nonzero()[:, 0]
        drawn = torch.rand(count, len(random), generator=torch.Generator().manual_seed(seed))
        size = max(1, round(self.config.timestep_fraction * len(random)))
        return random[drawn.argsort(1)[:, :size]]

    def _learn(self, minibatch: Round, meter: Meter) -> None:
        """Make one optimizer step: the gradient is summed over micro-batches and their denoising steps."""
        size = minibatch.own["chosen"].shape[1]
        for part, is_last in minibatch.micro_batches(self.config.micro_batch_size):
            texts = [self.run.prompts[i].text for i in part["prompt"].tolist()]
            conditions, counted = self.denoiser.conditions(texts), part.action_mask.any(1)
            for number in range(size):
                with self.updater.exchanging(is_last and number == size - 1):
                    losses, metrics = self.loss(part, part["chosen"][:, number], conditions)
                    sound = ops.soundness(counted, *metrics.values())
                    self.updater.backward(ops.masked_sum(losses, counted) / (len(minibatch) * size) * sound)
                meter.add(counted, metrics)
        self.updater.step(meter)

    def loss(self, part: Trajectories, index: Tensor, conditions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image at one of its denoising steps, float[B], and its metrics.

        Args:
            part: B images.
            index: long[B], the step of each.
            conditions: the embeddings of their prompts, as `Denoiser.conditions` returns them.
        """
        rows, clip = torch.arange(len(part), device=index.device), self.config.clip_range
        latents, old = part["latents"], part["old_logprobs"][rows, index]
        logprobs = self.denoiser.logprobs(latents[rows, index], latents[rows, index + 1], index, conditions)
        losses = clipped_loss(logprobs, old, part["advantages"], clip_range=clip)
        with torch.no_grad():
            ratio = torch.exp(logprobs - old)
            metrics = {
                "loss/policy": losses.detach(),
                "policy/ratio_mean": ratio,
                "policy/approx_kl": ops.kl_estimate(old, logprobs, estimator="k3"),
                "policy/clip_fraction": ((ratio - 1).abs() > clip).float(),
            }
        return losses, metrics

    def state_dict(self) -> State:
        """Return the optimizer, the order of prompts, the round's number and the rewards of each prompt."""
        return {
            "updater": self.updater.state_dict(), "order": self.order.state_dict(), "num_rounds": self.num_rounds,
            "statistics": self.statistics.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.num_rounds = state["num_rounds"]
        self.statistics.load_state_dict(state["statistics"])
