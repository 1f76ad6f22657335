"""The models of a run, built when its trainer asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from rlcore.protocols import Learner, Policy, SequenceScorer
from rlcore.ranks import Ranks
from rlcore.training.run_data import RunData


@attrs.define(eq=False, kw_only=True)
class BuiltModels(RunData):
    """What `Run` does with models: it builds them on this process's device.

    Attributes:
        ranks: this process's place among the processes of the run.
        make_policy: builds the policy; trainers call `build_policy`.
        make_frozen: builds another model to compare the policy with; trainers call `build_frozen`.
        make_scorer: builds the scorer; trainers call `build_scorer`.
        make_learner: builds a model of another kind; trainers call `build_learner`.
    """

    ranks: Ranks
    make_policy: Callable[..., Policy]
    make_frozen: Callable[[Any, Policy], Policy]
    make_scorer: Callable[[], SequenceScorer]
    make_learner: Callable[[str], Learner]

    def build_policy(self, *, value_head: bool = False, reference: bool = False, q_heads: int = 0) -> Policy:
        """Build the policy that the configuration describes, on this process's device.

        Args:
            value_head: add a value function.
            reference: keep a reference policy with the present weights.
            q_heads: number of Q-heads to add, together with a value function; the policy is a `QPolicy` then.

        Raises:
            ModelError: the model cannot be used, or the architecture has no Q-heads.
        """
        policy = self.make_policy(value_head=value_head or q_heads > 0, reference=reference, q_heads=q_heads)
        policy.to(self.ranks.device)
        self.policy = policy
        return policy

    def build_scorer(self) -> SequenceScorer:
        """Build the scorer that the configuration describes, on this process's device.

        A run with a scorer samples nothing: prompts and reward functions have no effect.

        Raises:
            ModelError: the model cannot be used, or the architecture builds no scorers.
        """
        self.scorer = self.make_scorer()
        self.scorer.to(self.ranks.device)
        return self.scorer

    def build_learner(self, kind: str) -> Learner:
        """Build a model that is neither a policy nor a scorer, on this process's device.

        A run with such a model samples no text: the trainer generates outputs itself, scores them with `score_outputs`
        and evaluates them with `add_evaluation`.

        Args:
            kind: what the architecture states in its attribute `builds`, such as "an image pipeline".

        Raises:
            ModelError: the model cannot be used, or the architecture builds another kind.
        """
        self.other = self.make_learner(kind)
        self.other.to(self.ranks.device)
        return self.other

    def build_frozen(self, model: Any) -> Policy:
        """Build another model with the architecture and tokenizer of the run, to compare the policy with.

        Nothing of it trains, and it is in evaluation mode.

        Args:
            model: a hub id, folder or module with the policy's vocabulary.

        Raises:
            ModelError: the model cannot be used.
        """
        return self.make_frozen(model, self.built_policy)

    @property
    def is_full_precision(self) -> bool:
        """Return whether forward passes run in float32 throughout."""
        weights = next(self.built_policy.module.parameters())
        is_quantized = self.config.model.get("quantization") is not None
        return self.ranks.mixed_precision == "no" and weights.dtype == torch.float32 and not is_quantized

    @property
    def export_class(self) -> str:
        """Return the name of the class that loads the trained model from the run's folder."""
        return self.learner.export_class
