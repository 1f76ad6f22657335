"""Models in training, and the functions that build them.

Also in this file: how a policy decodes text, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from rlcore.components import LANGUAGE_MODEL, SCORER, Traits
from rlcore.types import PolicyOutputs, Trajectories


class Decoder(Protocol):
    """A batch of sequences that is decoded token by token, with its key-value cache."""

    def start(self) -> DecodeStep:
        """Encode the prompts and return the outputs for the first new tokens."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Append one token to every sequence and return the outputs for the next.

        Args:
            tokens: long[B], sampled from the logits of the previous step.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all other sequences from the batch, for example those that have ended.

        Args:
            rows: long[K], ascending indices into the current batch.
        """
        ...


@attrs.frozen(eq=False)
class DecodeStep:
    """A decoder's outputs after one token of each sequence.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of the sequence so far; present if the policy has a value head on its trunk.
        advantages: float[B, V] or None, Q - V of every possible next token; only if requested.
        is_exact: whether the policy itself computed the logits; False for a low-precision copy of it, whose log-probs a
            sampler must not return as the policy's.
    """

    logits: Tensor
    values: Tensor | None
    advantages: Tensor | None = None
    is_exact: bool = True

    def rows(self, index: Tensor) -> DecodeStep:
        """Return the outputs of the sequences at `index`, long[K]."""
        values, advantages = (None if x is None else x[index] for x in (self.values, self.advantages))
        return DecodeStep(self.logits[index], values, advantages, self.is_exact)


@attrs.frozen(eq=False, kw_only=True)
class DecoderRequest:
    """A batch of prompts for which a policy seeks a decoder (`rlcore.hookspecs.Services`).

    Attributes:
        model: the language model, of `transformers` if the policy is.
        prompts: B sequences of token ids, of any lengths >= 1.
        max_new_tokens: upper bound on the calls of `step`.
        speed: the options `model.speed`.
        read_heads: computes values, float[B] or None, and advantages, float[B, V] or None, of a step from the input of
            the output embeddings, float[B, H]; None if a step has neither.
        autocast: returns the context of precision in which the model is run.
        packs: whether the model's attention may run packed: on sequences of these lengths one after another in one row.
        waiting: number of prompts that may join as rows become free.
    """

    model: Any
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    speed: Any
    read_heads: Callable[[Tensor], tuple[Tensor | None, Tensor | None]] | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    packs: bool = False
    waiting: int = 0

    @property
    def device(self) -> torch.device:
        """Return the model's device."""
        found: torch.device = next(self.model.parameters()).device
        return found


@runtime_checkable
class JoiningDecoder(Decoder, Protocol):
    """A decoder that may accept more prompts while it runs (continuous batching); `joins` returns whether it does.

    A policy whose `decoder` has a parameter `waiting` receives there the number of prompts that wait for a free row.
    """

    @property
    def joins(self) -> bool:
        """Whether the decoder accepts more prompts; defined after `start`."""
        ...

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Append prompts to the end of the batch and return the outputs for their first new tokens.

        Args:
            prompts: J sequences of token ids, none longer than the longest of the first prompts, each continued by at
                most `max_new_tokens` tokens.
        """
        ...


def joins(decoder: Decoder) -> JoiningDecoder | None:
    """Return `decoder` if it accepts more prompts, else None; call it after `start`."""
    return decoder if isinstance(decoder, JoiningDecoder) and decoder.joins else None


@attrs.frozen(kw_only=True)
class Trunk:
    """What a head is built on: the hidden states that a policy's output embeddings receive.

    Attributes:
        width: H, their width.
        vocabulary: V, the number of logits.
        gain: factor by which a new head should multiply them, 1 unless the model scales them down.
        in_tiles: whether heads should compute log-probs of a whole vocabulary in tiles (`model.speed.fused_logprobs`).
    """

    width: int
    vocabulary: int
    gain: float = 1.0
    in_tiles: bool = True


class Head(Protocol):
    """A further head of a policy, which an algorithm brings: a `torch.nn.Module` with float32 outputs.

    Its parameters are the policy's: they train, are saved beside the model under the head's name and are divided with
    the model's. A head that also has a method `advantages` steers sampling (`SteeringHead`).
    """

    def __call__(self, hidden: Tensor, chosen: Tensor) -> Mapping[str, Tensor]:
        """Return float[..., N] for N chosen tokens, by the names under which `PolicyOutputs.heads` holds them.

        Args:
            hidden: float[N, H], the hidden states that predict the tokens.
            chosen: long[N].
        """
        ...


@runtime_checkable
class SteeringHead(Head, Protocol):
    """A head whose advantages sampling adds to the log-probs, times `gen.beta`."""

    def advantages(self, hidden: Tensor, values: Tensor | None) -> Tensor:
        """Return the advantages of all next tokens, float32[B, V], without gradients.

        Args:
            hidden: float[B, H].
            values: float[B], V of the sequences so far; None if there is no value head on the trunk.
        """
        ...


HeadBuilder = Callable[[Trunk], Head]
"""Builds a head for a trunk."""


class Learner(Protocol):
    """A model in training: what a `Policy`, a `SequenceScorer` and a model of any other kind have in common."""

    tokenizer: Any
    """The tokenizer, at least a `rlcore.protocols.Tokenizer`; pipelines may require more. Saved with the model."""
    max_length: int
    """Longest sequence in tokens, prompt and continuation together; 0 if unbounded."""
    version: int
    """Rises with every change of the weights, so that a sampler that keeps a copy of them knows when to renew it.

    The updater adds 1 after each optimizer step, the model itself in `load_pretrained` and `sync_targets`. A trainer
    that changes weights without an updater adds 1 itself.
    """

    @property
    def export_class(self) -> str:
        """Name of the class that loads what `export` writes, such as `AutoModelForCausalLM` of `transformers`.

        A class of another package has its full name, such as `diffusers.StableDiffusionPipeline`.
        """
        ...

    @property
    def module(self) -> torch.nn.Module:
        """Every trainable parameter, heads included, without a reference model."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        ...

    def to(self, device: torch.device) -> None:
        """Move the model, and a reference model if there is one.

        Args:
            device: this process's device, `run.ranks.device`.
        """
        ...

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Set the wrapped `module` and the precision of an updater; before, `score` calls `module` without autocast.

        Args:
            forward: `score` calls this in place of `module`: the module that synchronises gradients between processes.
            autocast: returns the context of the run's precision, inside which every forward pass runs, also those of
                `reference_score` and of a decoder.
        """
        ...

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that the run enters around every training step, for what may be cached within a step.

        A model without such a cache returns `contextlib.nullcontext()`. Weights change inside the context; evaluations
        and checkpoints happen outside it.
        """
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write everything that `load_pretrained` reads, in the formats of `transformers` and `peft` plus the heads.

        Args:
            folder: a folder that does not exist yet or is empty.
        """
        ...

    def load_pretrained(self, folder: Path) -> None:
        """Load the weights, heads included, in place, because an optimizer may refer to the parameters.

        It raises `version`.

        Args:
            folder: a folder that `save_pretrained` wrote.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write the model so that `transformers` alone can load it, with the same outputs; called at the end of a run.

        Args:
            folder: a folder that does not exist yet or is empty.
        """
        ...


class Policy(Learner, Protocol):
    """A language model, as an algorithm uses it."""

    eos_token_ids: tuple[int, ...]
    """Tokens that end a sequence."""
    max_prompt_length: int
    """Longest prompt in tokens that leaves room for one more token; 0 if unbounded."""
    outputs_begin_text: bool
    """Whether outputs begin a text of their own, as in an encoder-decoder, instead of continuing the prompt's text."""

    def score(
        self, batch: Trajectories, *, entropy: bool = False, logits: bool = False, temperature: float = 1.0
    ) -> PolicyOutputs:
        """Compute the log-prob of each chosen token, with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the policy's device.
            entropy: also return the entropy of the distribution of each chosen token.
            logits: also return the logits of each chosen token, float[N, V].
            temperature: positive; log-probs, entropies and returned logits are those of logits / temperature.
        """
        ...

    def reference_score(self, batch: Trajectories, *, logits: bool = False, temperature: float = 1.0) -> PolicyOutputs:
        """Compute the log-prob of each chosen token under the policy as it was before training, without gradients.

        Args:
            batch: as for `score`.
            logits: as for `score`.
            temperature: as for `score`.
        """
        ...

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False) -> Decoder:
        """Return a decoder of continuations of `prompts`.

        Args:
            prompts: B sequences of token ids, of any lengths >= 1.
            max_new_tokens: upper bound on the calls of `step`, which sets the size of the cache.
            advantages: also return advantages at each step; only for a policy that `steers`.
        """
        ...


class PolicyTraits(Traits):
    """What a policy may offer beside `Policy`."""

    steers: bool = False
    """Whether it has a head that computes advantages (`SteeringHead`), so that it can be sampled with `gen.beta`."""
    sampling_copy: Callable[[], Policy] | None = None
    """Returns a policy with the present weights for good, from which `run.asynchronous` samples while this one
    learns."""


@runtime_checkable
class MovingReference(Policy, Protocol):
    """A policy whose reference can follow it, if the reference is a copy and not the model without its adapter."""

    def move_reference(self, rate: float) -> None:
        """Move the reference towards the policy: reference <- rate * policy + (1 - rate) * reference.

        Args:
            rate: in [0, 1].

        Raises:
            ModelError: there is no reference that can be moved.
        """
        ...

    def reference_state_dict(self) -> dict[str, Tensor]:
        """Return the weights of the reference that follow the policy, for checkpoints."""
        ...

    def load_reference_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the weights that `reference_state_dict` returned.

        Args:
            state: the weights by name.

        Raises:
            CheckpointError: they belong to another model.
        """
        ...


class SequenceScorer(Learner, Protocol):
    """A model that gives a whole sequence one number, such as a reward model; built by `run.build("scorer")`."""

    def score(self, batch: Trajectories) -> Tensor:
        """Return the score of each sequence, float[B], with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the scorer's device; `action_mask` has no effect.
        """
        ...


@runtime_checkable
class SizedVocabulary(Protocol):
    """A `Policy` that states how many tokens it knows, so that a run can compare it with another one's vocabulary."""

    @property
    def vocabulary_size(self) -> int:
        """V, the number of different tokens."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """A `Learner` whose model before training can be kept in the run's folder, for a run that is resumed.

    A run keeps it if the user gave no name from which it can be loaded again, and if the learner has a reference or
    `saves_part`. The resumed run passes the folder to the architecture as its argument `start`.
    """

    @property
    def saves_part(self) -> bool:
        """Whether `save_pretrained` leaves out what does not train, such as the model beneath an adapter."""
        ...

    def save_start(self, folder: Path) -> None:
        """Write the model before training.

        Args:
            folder: a folder that does not exist yet or is empty.

        Raises:
            ModelError: it cannot be restored from files.
        """
        ...

    def note_start(self, folder: Path) -> None:
        """Record in the learner's files where the model before training is.

        Args:
            folder: a folder that `save_start` wrote.
        """
        ...


class Architecture(Protocol):
    """A function that builds a policy from a model spec; `causal_lm` is one.

    The conformance kit tests an architecture with GPT-2 and Llama, or with T5 and BART if its options include those of
    `seq2seq_lm`; an architecture for other models has an `example_model`.
    """

    def __call__(
        self,
        spec: Any,
        config: Any,
        *,
        tokenizer: Any = None,
        value_head: bool = False,
        reference: bool = False,
        heads: Mapping[str, HeadBuilder] | None = None,
        start: Path | None = None,
    ) -> Policy:
        """Build a policy from `spec` (hub id, folder, configuration or module) and the architecture's options.

        Args:
            spec: the model that the user passed.
            config: an object of the class the architecture was registered with, or None if it has none.
            tokenizer: a tokenizer object, folder or hub id; the model's own if omitted.
            value_head: add a value head.
            reference: keep a copy of the initial weights for `reference_score`.
            heads: what builds each further head, by the name of the head; heads saved beside `spec` under these names
                are loaded. Passed only to builders that have this parameter.
            start: folder with the model before training that `Restorable.save_start` wrote in an earlier process, to
                be used in place of the weights of `spec`, which is no hub id or folder. Passed only in resumed runs, to
                builders that have this parameter; others receive the folder as `spec`.
        """
        ...


class ArchitectureTraits(Traits):
    """What an architecture may state and offer beside `Architecture`."""

    builds: str = LANGUAGE_MODEL
    """What it builds, of an architecture of a `Learner` of another kind, such as `"an image pipeline"`. It is called
    as `build(spec, config, tokenizer=...)` and has an `example_model`; trainers pass this kind to `run.build`."""
    scores_sequences: bool = False
    """Whether it builds a `SequenceScorer`, called as `build(spec, config, tokenizer=...)`; `sequence_scorer` does."""
    read_tokenizer: Callable[[Any, Any, Any], Any] | None = None
    """Returns the tokenizer of a model, such as a processor, from the model that the user passed, the tokenizer that
    the user passed, and the options; where it is left out, it is one of `transformers`."""
    example_model: Callable[[], Any] | None = None
    """Returns a model for the conformance kit, with the same weights in every call."""
    example_inputs: Mapping[str, Any] = MappingProxyType({})
    """Inputs with which the conformance kit trains the example instead of its own, such as
    `{"reward_fn": "brightness"}`."""
    reference_logprobs: Callable[[Any, list[int]], Tensor] | None = None
    """For models that are none of `transformers`: returns the log-probs of the token after each of those of one
    sequence, float[T, V], from an `example_model` and token ids; the conformance kit compares scores with them."""
    reference_score: Callable[..., Any] | None = None
    """Likewise for the score of one sequence, of a scorer whose head is none of `transformers`."""

    @property
    def kind(self) -> str:
        """What it builds: `LANGUAGE_MODEL`, `SCORER`, or what `builds` states."""
        return SCORER if self.scores_sequences else self.builds
