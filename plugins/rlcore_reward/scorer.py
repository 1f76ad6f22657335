"""The architecture `sequence_scorer`: any sequence classifier of `transformers` with one label as a reward model.

Also in this file: the architecture `step_scorer`: a token classifier with two labels, which judges each step of an
answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ModelError
from rlcore.profiling import note_scored
from rlcore.types import Trajectories
from rlcore_reward.classifier import (
    SEQUENCES,
    ClassifierKind,
    SequenceClassifier,
    has_head,
    is_classifier,
    load_classifier,
    settle_padding,
)
from rlcore_reward.config import SequenceScorerConfig
from rlcore_transformers.models import loading
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.learner import ModelLearner
from rlcore_transformers.models.policy_parts import check_vocabulary, prepare
from rlcore_transformers.models.save_load import starting_point
from rlcore_transformers.models.speed import SpeedReport
from rlcore_transformers.models.speed.activations import checkpoint_activations, fuse_activations, has_fused_activations
from rlcore_transformers.models.tokenizers import carry_special_tokens, load_tokenizer


class ModelScorer(ModelLearner[SequenceClassifier]):
    """A sequence classifier with one label (`rlcore.protocols.SequenceScorer`).

    Args:
        module: the classifier.
        tokenizer: its tokenizer, whose padding token is that of the model's configuration.
        max_length: the largest number of tokens of a sequence; 0 if unlimited.

    Attributes:
        version: number of changes of the weights so far.
        export_class: the class of `transformers` that loads what `export` writes.
    """

    export_class = "AutoModelForSequenceClassification"

    def score(self, batch: Trajectories) -> Tensor:
        """Return the score of each sequence, float[B], with gradients if they are enabled."""
        note_scored(batch.mask)
        with self._autocast():
            scores: Tensor = self._forward(batch.tokens, batch.mask)
        return scores.float().clone()  # divided weights allow no changes in place of a view


def build_sequence_scorer(
    spec: loading.ModelSpec, config: SequenceScorerConfig, *, tokenizer: object = None, start: Path | None = None
) -> ModelScorer:
    """Build a scorer from a model specification.

    The model's padding token is one that occurs in no text (`rlcore_reward.classifier`), so that plain
    `transformers` finds the same last token as this scorer.

    Args:
        spec: hub id or folder of a reward model or of a language model, which gets a new head; `PretrainedConfig`
            (random weights); or a model in memory.
        config: options of the architecture.
        tokenizer: object, folder or hub id; the model's own if omitted.
        start: folder with the model before training, of a run that is resumed (`rlcore.protocols.Restorable`).

    Raises:
        ModelError: the model, tokenizer or options do not fit.
    """
    spec = starting_point(spec, start, in_place=False)
    model = load_classifier(spec, config)
    loaded = load_tokenizer(spec, tokenizer, config)
    carry_special_tokens(model, loaded, tokenizer)
    # The embeddings of a language model in memory are its caller's, perhaps tied to a head that would not grow.
    loaded = settle_padding(model, loaded, may_grow=not isinstance(spec, PreTrainedModel) or is_classifier(spec))
    check_vocabulary(model, loaded)
    prepare(model, config)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return _finish(model, loaded, config)


def load_sequence_scorer(
    spec: loading.ModelSpec, config: SequenceScorerConfig, *, tokenizer: object = None
) -> ModelScorer:
    """Load a trained scorer as it is, to score with it, not to train it.

    The padding token of the model's configuration decides which token is scored, as in plain `transformers`; a model
    without one gets a padding token that occurs in no text, so that the last token is scored.

    Raises:
        ModelError: the model is no sequence classifier with one label, or cannot be loaded.
    """
    if not has_head(spec, config):
        name = type(spec).__name__ if isinstance(spec, PreTrainedModel) else repr(spec)
        raise ModelError(
            f"{name}: is no reward model, because it has no score head (a {SEQUENCES.suffix} model with one label): "
            "train one with trainer 'reward', or name another model"
        )
    model = load_classifier(spec, config)
    loaded = load_tokenizer(spec, tokenizer, config)
    pad_id = -1 if model.config.pad_token_id is None else int(model.config.pad_token_id)
    if not 0 <= pad_id < vocabulary_size(model):
        loaded = settle_padding(model, loaded, may_grow=True)
    check_vocabulary(model, loaded)
    model.requires_grad_(False)
    return _finish(model, loaded, config)


def _finish(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: SequenceScorerConfig) -> ModelScorer:
    """Return the scorer of a model, with the techniques of speed that its outputs allow."""
    module, speed = SequenceClassifier(model, config.speed), SpeedReport(config.speed)
    if config.speed.fused_activations:
        fuse_activations(model)
    if has_fused_activations(model):
        speed.needs("fused_activations")
    speed.find("packing", module.use_packing, 0)
    for name in ("prefixes", "attention_groups"):
        speed.needs(name, "packing")
    speed.log(type(model).__name__)
    return ModelScorer(module, tokenizer, max_length=loading.context_length(model))


build_sequence_scorer.scores_sequences = True  # type: ignore[attr-defined]  # an attribute of the Architecture protocol


TOKENS = ClassifierKind(AutoModelForTokenClassification, "ForTokenClassification", 2, "token")
"""Two labels for each token: 1 at the end of a correct step, 0 at that of a wrong one."""


class StepClassifier(SequenceClassifier):
    """A token classifier with two labels that takes sequences padded on any side."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the log-probs of both labels at each token: float[B, T, 2], zero where `mask` is False.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], True for real tokens, which are contiguous in each row; the other tokens are not read.
        """
        order = mask.int().argsort(dim=1, descending=True, stable=True)
        ids, real = tokens.gather(1, order), mask.gather(1, order)
        outputs: Any = self.model(input_ids=ids.masked_fill(~real, 0), attention_mask=real.long(), **self._options)
        logprobs = outputs.logits.float().log_softmax(-1).masked_fill(~real[..., None], 0.0)
        return torch.zeros_like(logprobs).scatter(1, order[..., None].expand_as(logprobs), logprobs)


class StepScorer(ModelScorer):
    """A token classifier as a `rlcore.protocols.SequenceScorer`: it scores the last token of each sequence."""

    export_class = "AutoModelForTokenClassification"

    def logprobs(self, batch: Trajectories) -> Tensor:
        """Return the log-probs of a wrong and of a correct step at each token: float[B, T, 2]."""
        note_scored(batch.mask)
        with self._autocast():
            logprobs: Tensor = self._forward(batch.tokens, batch.mask)
        return logprobs.float()

    def score(self, batch: Trajectories) -> Tensor:
        """Return the probability that the step that ends with the last token is correct: float[B]."""
        columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        last = (batch.mask * columns).argmax(1)
        return self.logprobs(batch)[torch.arange(len(batch), device=last.device), last, 1].exp()


def build_step_scorer(
    spec: loading.ModelSpec, config: SequenceScorerConfig, *, tokenizer: object = None, start: Path | None = None
) -> StepScorer:
    """Build a step scorer, to train it; the arguments are those of `build_sequence_scorer`.

    Raises:
        ModelError: the model, tokenizer or options do not fit.
    """
    spec = starting_point(spec, start, in_place=False)
    model = load_classifier(spec, config, TOKENS)
    loaded = load_tokenizer(spec, tokenizer, config)
    check_vocabulary(model, loaded)
    carry_special_tokens(model, loaded, tokenizer)
    prepare(model, config)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return StepScorer(StepClassifier(model, config.speed), loaded, max_length=loading.context_length(model))


def load_step_scorer(spec: loading.ModelSpec, config: SequenceScorerConfig, *, tokenizer: object = None) -> StepScorer:
    """Load a trained step scorer as it is, to score with it.

    Raises:
        ModelError: the model is no token classifier with two labels, or cannot be loaded.
    """
    if not has_head(spec, config, TOKENS):
        name = type(spec).__name__ if isinstance(spec, PreTrainedModel) else repr(spec)
        raise ModelError(
            f"{name}: is no process reward model (a {TOKENS.suffix} model with two labels): train one with trainer "
            "'process_reward', or name another model"
        )
    scorer = build_step_scorer(spec, config, tokenizer=tokenizer)
    scorer.module.requires_grad_(False)
    return scorer


build_step_scorer.scores_sequences = True  # type: ignore[attr-defined]  # an attribute of the Architecture protocol
