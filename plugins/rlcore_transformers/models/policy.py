"""The policy that trainers and samplers use: a `transformers` language model, its heads and its reference model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore import ops
from rlcore.errors import ModelError
from rlcore.profiling import note_scored
from rlcore.protocols import Decoder, SteeringHead
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_transformers.models import loading
from rlcore_transformers.models.decoding.cache import LowPrecisionCopy, LowPrecisionDecoder
from rlcore_transformers.models.decoding.causal_decoder import ReadHeads
from rlcore_transformers.models.forward import ActorCritic, ModelOutputs, run_in_groups, run_model
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.heads import TrunkValue
from rlcore_transformers.models.hub import check_same_form
from rlcore_transformers.models.input_layout import kind_of
from rlcore_transformers.models.learner import ModelLearner
from rlcore_transformers.models.peft.adapters import Adapters


class ModelPolicy(ModelLearner[ActorCritic]):
    """A language model, its heads and its reference model (`rlcore.protocols.Policy`).

    Args:
        module: the model with its heads.
        tokenizer: the model's tokenizer.
        reference: the initial model, or the adapters that are switched off to get it; None without a reference.
        max_length: the largest number of tokens of prompt and continuation together; 0 if unlimited.
        max_prompt_length: the largest number of tokens of a prompt; 0 if unlimited.
        outputs_begin_text: whether an output is a text of its own, as an encoder-decoder's is, or continues the prompt.
        sampling_dtype: dtype, by name, of a low-precision copy of the weights to decode with; None to decode with the
            model itself.

    Attributes:
        version: number of changes of the weights so far (`rlcore.protocols.Policy`).
    """

    def __init__(
        self,
        module: ActorCritic,
        tokenizer: PreTrainedTokenizerBase,
        reference: PreTrainedModel | Adapters | None,
        *,
        max_length: int,
        max_prompt_length: int,
        outputs_begin_text: bool = False,
        sampling_dtype: str | None = None,
    ) -> None:
        super().__init__(module, tokenizer, max_length=max_length)
        self.reference, self.max_prompt_length = reference, max_prompt_length
        self.outputs_begin_text = outputs_begin_text
        self._low_precision = (
            None if sampling_dtype is None else LowPrecisionCopy(module.model, getattr(torch, sampling_dtype))
        )
        self.eos_token_ids = loading.eos_token_ids(module.model, tokenizer)

    def to(self, device: torch.device) -> None:
        """Move the model, its heads and its reference to `device`."""
        is_waiting = bool(self.start_dtypes())
        super().to(device)
        if isinstance(self.reference, PreTrainedModel) and not is_waiting:
            self.reference.to(device)  # type: ignore[arg-type]

    def start_models(self) -> Sequence[object]:
        """Return the models whose weights may be as in their files: the model, copies of its blocks, its reference."""
        return (*self.module.modules(), self.reference)

    def frozen_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the reference's parameters that are not the policy's."""
        own = {id(weight) for weight in self.module.parameters()}
        named = self.reference.named_parameters() if isinstance(self.reference, PreTrainedModel) else ()
        return {name: weight for name, weight in named if id(weight) not in own}

    def frozen_modules(self) -> Sequence[nn.Module]:
        """Return the reference, if it is a model of its own."""
        if not isinstance(self.reference, PreTrainedModel):
            return ()
        beside = nn.Module()  # in which blocks are found as in `module`
        beside.model = self.reference
        return (beside,)

    def training_step(self) -> AbstractContextManager[Any]:
        """Return the context of one training step, in which the outputs of frozen layers are cached."""
        trunk = self.module.trunk
        return nullcontext() if trunk is None else trunk.caching()

    def score(
        self, batch: Trajectories, *, entropy: bool = False, logits: bool = False, temperature: float = 1.0
    ) -> PolicyOutputs:
        """Compute log-probs and the heads' outputs for each chosen token, with gradients if they are enabled."""
        note_scored(batch.action_mask)
        with self._autocast():
            outputs = self._forward(
                batch.tokens, batch.mask, batch.action_mask, entropy=entropy, logits=logits, temperature=temperature
            )
        return _scores(outputs, batch)

    @torch.no_grad()
    def reference_score(self, batch: Trajectories, *, logits: bool = False, temperature: float = 1.0) -> PolicyOutputs:
        """Compute the log-prob of each chosen token under the reference, the policy before training.

        Raises:
            ModelError: the policy was built without a reference.
        """
        if self.reference is None:
            raise ModelError("this policy has no reference: build it with reference=True")
        self._complete()
        adapters_off: AbstractContextManager[Any] = nullcontext()
        model = self.reference
        if isinstance(model, Adapters):
            adapters_off, model = model.off(), model.model
        layout, logit_map, trunk = self.module.layout, self.module.logit_map, self.module.trunk

        def run(*arrays: Tensor) -> ModelOutputs:
            return run_model(
                model, layout, *arrays, logit_map=logit_map, logits=logits, temperature=temperature, trunk=trunk
            )[0]

        with self._autocast(), adapters_off:
            outputs = run_in_groups(layout, run, batch.tokens, batch.mask, batch.action_mask)
        return _scores(outputs, batch)

    @torch.no_grad()
    def move_reference(self, rate: float) -> None:
        """Move the reference towards the policy: reference <- rate * policy + (1 - rate) * reference.

        Raises:
            ModelError: there is no reference, or it is the model without its adapter.
        """
        moving = self.reference_state_dict()
        for name, weight in self.model.named_parameters():
            if name in moving:
                moving[name].lerp_(weight, rate)
        self._scatter_reference()

    def reference_state_dict(self) -> dict[str, Tensor]:
        """Return the weights of the reference that follow the policy: those that are not shared with it.

        Raises:
            ModelError: there is no reference, or it is the model without its adapter.
        """
        if not isinstance(self.reference, PreTrainedModel):
            what = "has no reference" if self.reference is None else "has the model without its adapter as reference"
            raise ModelError(f"this policy {what}, which cannot follow it")
        self._complete()
        own = {id(weight) for weight in self.model.parameters()}
        return {name: weight for name, weight in self.reference.named_parameters() if id(weight) not in own}

    @torch.no_grad()
    def load_reference_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the weights that `reference_state_dict` returned.

        Raises:
            CheckpointError: they belong to another model.
        """
        weights = self.reference_state_dict()
        check_same_form(Path("checkpoint"), "reference's weights", weights, state)
        for name, weight in weights.items():
            weight.copy_(state[name])
        self._scatter_reference()

    def _complete(self) -> None:
        """Complete the weights of the module and of the reference, which may share some; collective."""
        for shards in self._shards:
            shards.gather()

    def _scatter_reference(self) -> None:
        for shards in self._shards[1:]:
            shards.scatter()

    def decoder(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False, waiting: int = 0
    ) -> Decoder:
        """Return a decoder of `prompts`; its steps contain values if the value head is on the trunk.

        With `sampling_dtype`, the weights are copied into the low-precision copy here; the decoder's steps are marked
        as inexact and contain no values.

        Args:
            prompts: B sequences of token ids.
            max_new_tokens: the largest number of steps.
            advantages: compute the advantages of the head that steers, at every step.
            waiting: number of prompts that may join (`rlcore.protocols.learners.JoiningDecoder`) as rows become free.

        Raises:
            ModelError: advantages are requested of a policy without a head that computes them.
        """
        self.gather()
        heads = self._read_heads(advantages=advantages)
        model = self.model
        if self._low_precision is not None:
            model, heads = (
                self._low_precision.fresh(),
                _without_values(heads) if advantages and heads is not None else None,
            )
        decoder = self.module.layout.decoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, autocast=self._autocast, waiting=waiting
        )
        return decoder if self._low_precision is None else LowPrecisionDecoder(decoder)

    def sampling_copy(self) -> ModelPolicy:
        """Return a policy to sample from with the present weights, which later changes of this one do not reach.

        Weights that do not train are shared with it. It has no reference, and its scores are not cached.

        Raises:
            ModelError: the weights are divided among processes.
        """
        if self._shards:
            raise ModelError(
                "a copy of the policy, to sample from while it learns, is not made with weights divided among processes"
            )
        kept: list[Any] = [self.tokenizer, self._autocast]
        kept += [weight for weight in self.module.parameters() if not weight.requires_grad]
        memo: dict[int, Any] = {id(each): each for each in kept}
        for left_out in (self.reference, self.module.trunk):
            memo[id(left_out)] = None
        memo[id(self._forward)] = copied = copy.deepcopy(self.module, memo)
        copied.eval()
        return copy.deepcopy(self, memo)

    def _read_heads(self, *, advantages: bool) -> ReadHeads | None:
        """Return the function that computes values and advantages from hidden states; None if there is neither."""
        value, steering = self.module.value, self._steering
        head = value.head if isinstance(value, TrunkValue) else None
        if not advantages:
            return None if head is None else lambda hidden: (head(hidden), None)
        if steering is None:
            raise ModelError("this policy has no head with advantages, such as Q-heads: build it with heads={...}")

        def read(hidden: Tensor) -> tuple[Tensor | None, Tensor]:
            values = None if head is None else head(hidden)
            return values, steering.advantages(hidden, values)

        return read

    @property
    def _steering(self) -> SteeringHead | None:
        return next((head for head in self.module.heads.values() if isinstance(head, SteeringHead)), None)

    @property
    def steers(self) -> bool:
        """Return whether a head computes advantages."""
        return self._steering is not None

    @property
    def vocabulary_size(self) -> int:
        """Return V, the size of the input embeddings."""
        return vocabulary_size(self.model)

    @property
    def export_class(self) -> str:
        """Return the name of the class of `transformers` that loads what `export` writes."""
        return str(kind_of(self.model.config).loader.__name__)


def _without_values(heads: ReadHeads) -> ReadHeads:
    """Return a function that computes the advantages only, from hidden states of low precision."""
    return lambda hidden: (None, heads(hidden.float())[1])


def _scores(outputs: ModelOutputs, batch: Trajectories) -> PolicyOutputs:
    """Place outputs of the chosen tokens, float[N], at their positions: float[B, T], 0 elsewhere."""
    chosen = batch.action_mask

    def spread_each(output: Tensor) -> Tensor:
        if output.dim() == 1:
            return ops.spread(output, chosen)
        return torch.stack([spread_each(each) for each in output])

    return PolicyOutputs(
        logprobs=ops.spread(outputs.logprobs, chosen),
        values=None if outputs.values is None else ops.spread(outputs.values, chosen),
        entropy=None if outputs.entropy is None else ops.spread(outputs.entropy, chosen),
        logits=outputs.logits,
        heads={name: spread_each(output) for name, output in outputs.heads.items()},
    )
