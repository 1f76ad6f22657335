"""What a model must offer to be trained: a policy, what decodes with it, and what builds it.

A part of `rlcore.protocols`, which is where to import these from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from rlcore.types import PolicyOutputs, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@attrs.frozen(eq=False)
class DecodeStep:
    """Hold what a decoder says after reading a token.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of everything read so far, where the policy has a value head on its trunk.
        advantages: float[B, V] or None, Q less V of every token that could come next, where they were asked for.
        is_exact: whether these are the policy's own logits; False where they come from a copy of it in a narrower type,
            so that a sampler must not pass log-probs of them on as the policy's.
    """

    logits: Tensor
    values: Tensor | None
    advantages: Tensor | None = None
    is_exact: bool = True

    def rows(self, index: Tensor) -> DecodeStep:
        """Return what is said of the sequences at `index`, long[K]."""
        values, advantages = (None if x is None else x[index] for x in (self.values, self.advantages))
        return DecodeStep(self.logits[index], values, advantages, self.is_exact)


class Decoder(Protocol):
    """A batch of sequences being continued token by token, with its cache."""

    def start(self) -> DecodeStep:
        """Read the prompts."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence.

        Args:
            tokens: long[B], the tokens drawn from the last step's logits.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the sequences only, as when the others have ended.

        Args:
            rows: long[K], their places among the present ones, ascending.
        """
        ...


@runtime_checkable
class JoiningDecoder(Decoder, Protocol):
    """A decoder that takes further prompts in while it runs; whoever decodes asks `joins` whether one does.

    A policy whose `decoder` has an argument `waiting` is told there how many prompts wait for a place.
    """

    @property
    def joins(self) -> bool:
        """Tell whether it does; known once it has read its first prompts."""
        ...

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Read further prompts, whose sequences go behind the present ones; say what follows these prompts.

        Args:
            prompts: J sequences of ids, none longer than the longest of the first ones; nor may they be continued to
                lengths that those were not announced to be continued to.
        """
        ...


def joins(decoder: Decoder) -> JoiningDecoder | None:
    """Return `decoder`, which has read its first prompts, if it takes further ones in."""
    return decoder if isinstance(decoder, JoiningDecoder) and decoder.joins else None


class Policy(Protocol):
    """A language model as an algorithm sees it."""

    tokenizer: PreTrainedTokenizerBase
    """Turns text into the tokens the model reads; saved with the model."""
    forward: Callable[..., Any]
    """What `score` calls: `module` itself, until an updater puts the wrapped module of several processes here."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """The precision that `score`, `reference_score` and decoders run in; an updater puts the run's mixed one here."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a sequence when they are drawn."""
    max_length: int
    """Tokens a sequence may have, prompt and continuation together; 0 where there is no bound."""
    max_prompt_length: int
    """Tokens a prompt may have that is to be continued by one at least; 0 where there is no bound."""
    outputs_begin_text: bool
    """Whether what it writes begins a text of its own, as with an encoder-decoder, and does not go on the prompt's."""
    num_q_heads: int
    """Q-heads the policy has; with any, it is a `QPolicy`."""

    @property
    def module(self) -> torch.nn.Module:
        """Hold every trainable parameter, heads included, and nothing of the reference."""
        ...

    @property
    def device(self) -> torch.device:
        """Tell where the parameters are."""
        ...

    def to(self, device: torch.device) -> None:
        """Move everything, the reference included.

        Args:
            device: where this process computes, `run.ranks.device`.
        """
        ...

    def score(self, batch: Trajectories, *, entropy: bool = False, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy finds each chosen token, with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the policy's device.
            entropy: say the entropy of the distribution behind each chosen token too.
            logits: give the logits behind each chosen token too, a tensor of N x V numbers.
        """
        ...

    def reference_score(self, batch: Trajectories, *, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy found each chosen token before training began; never with gradients.

        Args:
            batch: as for `score`.
            logits: as for `score`.
        """
        ...

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False) -> Decoder:
        """Begin to continue prompts.

        Args:
            prompts: B sequences of ids, of any lengths >= 1.
            max_new_tokens: how often `step` will be called at most, for a cache of that size.
            advantages: give those too; asked only of a policy with Q-heads.
        """
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write all that `load_pretrained` needs, in the formats of `transformers` and `peft`; heads lie beside it.

        Args:
            folder: does not exist yet, or is empty.
        """
        ...

    def load_pretrained(self, folder: Path) -> None:
        """Take the weights, heads included, in place: an optimizer may hold the parameters already.

        Args:
            folder: one that `save_pretrained` wrote.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write what plain `transformers` loads with nothing else installed, as a run's last act.

        Args:
            folder: does not exist yet, or is empty.
        """
        ...


class QPolicy(Policy, Protocol):
    """A policy with Q-heads, as `run.build_policy(q_heads=2)` returns it; what it scores has `q_values` and so on."""

    def sync_targets(self, rate: float) -> None:
        """Move every target Q-head towards its Q-head: target <- rate * Q + (1 - rate) * target.

        Args:
            rate: in [0, 1].
        """
        ...


class Architecture(Protocol):
    """A way to turn a model specification into a policy; the built-in one is `rlcore.models.causal.build_causal_lm`.

    One that does not take GPT-2 and Llama (T5 and BART, if its options are those of `seq2seq_lm` or more) gives the
    conformance kit a model it takes: an attribute `example_model`, a function that returns one.
    """

    def __call__(
        self,
        spec: Any,
        config: Any,
        *,
        tokenizer: Any = None,
        value_head: bool = False,
        reference: bool = False,
        q_heads: int = 0,
    ) -> Policy:
        """Build a policy from `spec` (hub id, folder, configuration or module) and the architecture's options.

        Args:
            spec: what the user passed as the model.
            config: an object of the class the architecture was registered with, None if it has none.
            tokenizer: object, folder or hub id; the model's own when left out.
            value_head: give the policy a value function.
            reference: keep the policy as it is now, for `reference_score`.
            q_heads: how many Q-heads to give the policy, each with a target copy; only a builder that takes this
                argument is asked for any, and then for a value function too.
        """
        ...
