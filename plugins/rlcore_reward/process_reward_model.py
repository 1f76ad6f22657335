"""The reward `process_reward_model`: the probabilities that the steps of an answer are correct, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlcore.errors import ConfigError
from rlcore.settings import DataConfig
from rlcore_reward.config import ProcessRewardModelConfig, SequenceScorerConfig
from rlcore_reward.loss import combine_steps
from rlcore_reward.placement import place
from rlcore_reward.process_trainer import stack_steps
from rlcore_reward.step_scorer import StepScorer, load_step_scorer
from rlcore_reward.stepwise import SEPARATOR, SteppedSample, build_stepwise
from rlcore_transformers.data.tokens import shorter


class ProcessRewardModel:
    """A reward function that judges each step of an answer: each of its lines.

    Prompt and steps have the tokens that they had in training. The model is loaded at once, and again at the first call
    after `close`.

    Args:
        config: the options.

    Raises:
        ConfigError: no model is named, or there is no such device.
        ModelError: the model cannot be loaded, or is no token classifier with two labels.
    """

    def __init__(self, config: ProcessRewardModelConfig) -> None:
        if config.path == "":
            raise ConfigError("process_reward_model.path is empty: name the hub id or folder of a process reward model")
        self.config = config
        self._scorer: StepScorer | None = _load(config)

    @property
    def scorer(self) -> StepScorer:
        """Return the model, which is loaded if it is closed."""
        scorer = self._scorer = self._scorer or _load(self.config)
        return scorer

    def __call__(self, prompts: Sequence[str], outputs: Sequence[str]) -> list[float | None]:
        """Return one number for each output; None for one without a step, or too long for the model."""
        steps = [[line for line in output.split(SEPARATOR) if line.strip()] for output in outputs]
        some = [i for i, lines in enumerate(steps) if lines]
        if not some:
            return [None] * len(outputs)
        rows = [{"prompt": prompts[i], "completions": steps[i], "labels": [True] * len(steps[i])} for i in some]
        samples = build_stepwise(rows, self.scorer.tokenizer, DataConfig(), max_length=0)
        rewards: list[float | None] = [None] * len(outputs)
        for i, reward in zip(some, self.score(samples), strict=True):
            rewards[i] = reward
        return rewards

    @torch.no_grad()
    def score(self, samples: Sequence[SteppedSample]) -> list[float | None]:
        """Return one number for each answer in steps; answers of similar length are scored together."""
        scorer, limit = self.scorer, shorter(self.config.max_length, self.scorer.max_length)
        lengths = [len(sample.sample.tokens) for sample in samples]
        scores: list[float | None] = [None] * len(samples)
        order = sorted((i for i, size in enumerate(lengths) if not limit or size <= limit), key=lengths.__getitem__)
        for start in range(0, len(order), self.config.batch_size):
            index = order[start : start + self.config.batch_size]
            batch = stack_steps([samples[i] for i in index]).to(scorer.device)
            numbers = combine_steps(scorer.logprobs(batch)[..., 1], batch.action_mask, how=self.config.combine)
            for i, number in zip(index, numbers.tolist(), strict=True):
                scores[i] = number
        return scores

    def close(self) -> None:
        """Free the model's memory; a model given in memory stays the caller's."""
        self._scorer = None


def _load(config: ProcessRewardModelConfig) -> StepScorer:
    options = SequenceScorerConfig(
        dtype=config.dtype, trust_remote_code=config.trust_remote_code, revision=config.revision
    )
    scorer = load_step_scorer(config.path, options, tokenizer=config.tokenizer)  # type: ignore[arg-type]
    place(scorer, config)
    return scorer
