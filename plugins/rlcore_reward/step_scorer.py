"""The architecture `step_scorer`: a token classifier with two labels, which judges each step of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedModel

from rlcore.errors import ModelError
from rlcore.profiling import note_scored
from rlcore.types import Trajectories
from rlcore_reward.classifier import ClassifierKind, SequenceClassifier, has_head, load_classifier
from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import ModelScorer
from rlcore_transformers.models import loading
from rlcore_transformers.models.policy_parts import check_vocabulary, prepare
from rlcore_transformers.models.save_load import starting_point
from rlcore_transformers.models.speed.activations import checkpoint_activations
from rlcore_transformers.models.tokenizers import carry_special_tokens, load_tokenizer

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
