"""The reward `reward_model`: the score that a reward model gives a prompt with its answer.

Also in this file: the reward `process_reward_model`: the probabilities that the steps of an answer are correct, as
one number; the device that a reward model runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ConfigError, ModelError
from rlcore.settings import DataConfig
from rlcore.types import Trajectories
from rlcore_reward.config import ProcessRewardModelConfig, RewardModelConfig, SequenceScorerConfig
from rlcore_reward.loss import combine_steps
from rlcore_reward.process_trainer import SEPARATOR, SteppedSample, build_stepwise, stack_steps
from rlcore_reward.scorer import ModelScorer, StepScorer, load_sequence_scorer, load_step_scorer
from rlcore_transformers.data.chat import Chat, apply_template, fit_messages, template_variables
from rlcore_transformers.data.tokens import end_of_turn, shorter, special_ids
from rlcore_transformers.models.loading import device_named


def place(scorer: ModelScorer, config: RewardModelConfig) -> None:
    """Move a scorer to the device that its options name; a model in memory stays where it is, unless they name one.

    Raises:
        ConfigError: torch has no such device.
    """
    if not (isinstance(config.path, PreTrainedModel) and config.device == "auto"):
        scorer.to(device_named(config.device, "reward_model.device"))


Message = Mapping[str, Any]


class RewardModel:
    """A reward function that scores text with a reward model, its own tokenizer and its own chat template.

    A conversation is rendered with the reward model's chat template and, if the prompts have it, the column `tools`; a
    plain text is the prompt with the output. EOS is added where the policy ended its answer: with a token that ends
    sequences in the run, or, outside a run, with the EOS of the policy's tokenizer. The model is loaded at once, and
    again at the first call after `close`.

    Args:
        config: the options.

    Raises:
        ConfigError: no model is named, or there is no such device.
        ModelError: the model cannot be loaded, or is no sequence classifier with one label.
    """

    _run: Any = None

    def __init__(self, config: RewardModelConfig) -> None:
        self.config, self._scorer = config, None if config.path == "" else _load(config)
        if self._scorer is None:
            raise ConfigError("reward_model.path is empty: name the hub id or folder of a reward model")

    @property
    def scorer(self) -> ModelScorer:
        """Return the reward model, which is loaded if it is closed."""
        self._scorer = self._scorer or _load(self.config)
        return self._scorer

    def open(self, run: object) -> None:
        """Take from a run, whose policy is built later, the tokens that end sequences."""
        self._run = run

    def __call__(
        self,
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Message] | None],
        output_tokens: Sequence[Sequence[int]] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        tools: Sequence[object] | None = None,
    ) -> list[float | None]:
        """Return the score of each output, or None for one that is too long for the model."""
        last = [tokens[-1] if tokens else None for tokens in output_tokens or [()] * len(outputs)]
        ending = self._ending(tokenizer)
        rows = [
            self.encode(prompts[i] + outputs[i], messages[i], last[i] in ending, tools=tools[i] if tools else None)
            for i in range(len(outputs))
        ]
        return self.score(rows)

    def encode(
        self, text: str, messages: Sequence[Message] | None, is_ended: bool, *, tools: object = None
    ) -> list[int]:
        """Return the reward model's tokens of a plain text, or of a conversation where there is one."""
        own = self.scorer.tokenizer
        if messages is not None:
            if own.chat_template is None:
                raise ModelError(
                    "reward_model: the prompts are conversations, and the reward model's tokenizer has no chat "
                    "template: set one (tokenizer.chat_template), or give plain prompts"
                )
            # The template must not close an answer that was truncated.
            options: dict[str, Any] = {} if is_ended else {"continue_final_message": True}
            chat = Chat("reward_model", messages, template=template_variables({"tools": tools}, "prompts"))
            rendered = apply_template(own, fit_messages(own, chat), **options)
            ids = list(own(rendered, add_special_tokens=False).input_ids)
            special = special_ids(own)
            is_closed = ids[end_of_turn(own, ids, special) - 1] in special  # a template may write white space after it
            return [*ids, own.eos_token_id] if is_ended and not is_closed and own.eos_token_id is not None else ids
        ids = list(own(text).input_ids)
        eos = own.eos_token_id
        if isinstance(eos, int):
            while len(ids) > 1 and ids[-1] == eos:  # which some tokenizers add to every text
                ids.pop()
            if is_ended:
                ids.append(eos)
        return ids

    @torch.no_grad()
    def score(self, rows: Sequence[Sequence[int]]) -> list[float | None]:
        """Return the score of each sequence of tokens; sequences of similar length are scored together."""
        scorer, limit = self.scorer, shorter(self.config.max_length, self.scorer.max_length)
        scores: list[float | None] = [None] * len(rows)
        order = sorted(
            (i for i, row in enumerate(rows) if row and (not limit or len(row) <= limit)), key=lambda i: len(rows[i])
        )
        for start in range(0, len(order), self.config.batch_size):
            index = order[start : start + self.config.batch_size]
            batch = Trajectories.stack([rows[i] for i in index], [[False] * len(rows[i]) for i in index])
            for i, number in zip(index, scorer.score(batch.to(scorer.device)).tolist(), strict=True):
                scores[i] = number
        return scores

    def _ending(self, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
        """Return the ids that end sequences: those of the run's samplings, or the tokenizer's EOS without a run."""
        if self._run is None:
            eos = None if tokenizer is None else tokenizer.eos_token_id
            return frozenset([eos] if isinstance(eos, int) else [])
        config, own = self._run.config, self._run.models.policy.eos_token_ids
        ids = config.gen.eos_token_ids
        return frozenset([*_flat(ids, own), *_flat(config.eval.gen.get("eos_token_ids", ids), own)])

    def close(self) -> None:
        """Free the model's memory; a model given in memory stays the caller's."""
        self._scorer = None


def _flat(ids: Sequence[Any] | None, own: Sequence[int]) -> list[int]:
    """Return the ids of a list, or of the lists that evaluations sweep; None stands for the policy's own."""
    if ids is None:
        return [*own]
    return [token for each in ids for token in ([each] if isinstance(each, int) else _flat(each, own))]


def _load(config: RewardModelConfig) -> ModelScorer:
    options = SequenceScorerConfig(
        dtype=config.dtype, trust_remote_code=config.trust_remote_code, revision=config.revision
    )
    spec: Any = config.path
    try:
        scorer = load_sequence_scorer(spec, options, tokenizer=config.tokenizer)
    except ModelError as error:
        if config.tokenizer is not None or "tokenizer" not in str(error):
            raise
        raise ModelError(f"{error}; a reward has it in {{fn: reward_model, path: ..., tokenizer: ...}}") from error
    place(scorer, config)
    return scorer


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
        self._scorer: StepScorer | None = _process_reward_model_load(config)

    @property
    def scorer(self) -> StepScorer:
        """Return the model, which is loaded if it is closed."""
        scorer = self._scorer = self._scorer or _process_reward_model_load(self.config)
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


def _process_reward_model_load(config: ProcessRewardModelConfig) -> StepScorer:
    options = SequenceScorerConfig(
        dtype=config.dtype, trust_remote_code=config.trust_remote_code, revision=config.revision
    )
    scorer = load_step_scorer(config.path, options, tokenizer=config.tokenizer)  # type: ignore[arg-type]
    place(scorer, config)
    return scorer
