"""DDPO's loop: sample images, compare their rewards, learn from their denoising steps, yield."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from rlcore import ops
from rlcore.config import evolve, unstructure
from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.settings import SamplingConfig
from rlcore.training import Meter, Round, Run, disable_dropout
from rlcore.types import Metrics, Trajectories
from rlcore_ddpo.config import KIND, DDPOConfig, check
from rlcore_ddpo.denoising import Denoiser
from rlcore_ddpo.image_sampling import ImageSampler
from rlcore_ddpo.loss import PromptStatistics, clipped_loss, standardised
from rlcore_ddpo.rehearsal import rehearse, workload

if TYPE_CHECKING:
    from rlcore_ddpo.image_pipeline import ImagePipeline


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
        begun, meter, skipped = time.perf_counter(), Meter(self.run.ranks), self.updater.num_skipped
        for epoch in range(self.config.epochs):
            seed = (self.run.config.run.seed * 1_000_003 + self.num_rounds) * 101 + epoch
            steps = batch.mine(self._choose_steps(len(batch), seed)).to(self.run.ranks.device)
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

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer, the order of prompts, the round's number and the rewards of each prompt."""
        return {
            "updater": self.updater.state_dict(), "order": self.order.state_dict(), "num_rounds": self.num_rounds,
            "statistics": self.statistics.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.num_rounds = state["num_rounds"]
        self.statistics.load_state_dict(state["statistics"])
