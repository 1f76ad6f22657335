"""The options of samplers that change logits, applied to the logits of each step of decoding."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.ops import eval_mode
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, tensor_on
from rlcore_transformers.sampling.draw import penalise
from rlcore_transformers.sampling.record import Running
from rlcore_transformers.sampling.token_ids import TokenIds
from rlcore_transformers.sampling.token_options import TokenOptions

log = get_logger("sampling")


@attrs.define(eq=False)
class LogitChanges:
    """Changes logits by `logit_bias`, `allowed_tokens`, `forbidden_tokens` and `repetition_penalty`.

    Attributes:
        penalty: the repetition penalty; 1 for none.
        offsets: float[V], added to the logits of every row; None if nothing is.
        excluded: bool[V], tokens that are never sampled; None if there are none.
        read: the tokens that each row has read and chosen; None without a penalty.
    """

    penalty: float
    offsets: Tensor | None
    excluded: Tensor | None
    read: ReadTokens | None

    @classmethod
    def of(
        cls,
        options: TokenOptions,
        policy: Policy,
        sampling: SamplingConfig,
        prompts: Sequence[Prompt],
        *,
        vocabulary: int,
        longest: int,
    ) -> LogitChanges | None:
        """Prepare the options for N prompts; None if none of them changes logits before truncation.

        Args:
            options: those of the sampler.
            policy: its tokenizer looks up texts, its device holds the tensors.
            sampling: the section `gen`.
            prompts: N prompts.
            vocabulary: V.
            longest: the most tokens of a continuation.

        Raises:
            ConfigError: the options name tokens that there are not, or leave none to sample.
        """
        ids = TokenIds.read(options, policy.tokenizer)
        offsets = None if ids.is_empty else ids.offsets(vocabulary, policy.device)
        excluded = offsets.isneginf() if offsets is not None and ids.excludes else None
        if excluded is not None:
            _check_minimum(excluded, policy, sampling)
        read = None
        if options.repetition_penalty != 1:
            read = ReadTokens.begin(policy, prompts, vocabulary, longest)
        if offsets is None and read is None:
            return None
        return cls(options.repetition_penalty, offsets, excluded, read)

    def __call__(self, logits: Tensor, running: Running) -> Tensor:
        """Return the changed logits of the running rows: float[K, V]."""
        if self.offsets is not None:
            logits = logits + self.offsets
        if self.read is not None:
            logits = penalise(logits, self.read.of(running), self.penalty)
        return logits

    def note(self, running: Running, at: Tensor, tokens: Tensor) -> None:
        """Note that the running rows chose `tokens`, long[K], as their tokens number `at`, long[K]."""
        if self.read is not None:
            self.read.tokens[running.rows, self.read.begins[running.rows] + at] = tokens


@attrs.define(eq=False)
class ReadTokens:
    """The tokens that each of N rows has read and chosen.

    Attributes:
        tokens: long[N, T]; a row ends with copies of its first token.
        begins: long[N], the column of the first chosen token of each row.
        longest: the most tokens before the first chosen one.
    """

    tokens: Tensor
    begins: Tensor
    longest: int

    @classmethod
    def begin(cls, policy: Policy, prompts: Sequence[Prompt], vocabulary: int, longest: int) -> ReadTokens:
        """Return the tokens that rows have read before the first is chosen.

        These are the prompt's, or the first ones of the decoder if the model has an encoder for the prompt. Ids beyond
        the vocabulary of the logits, such as those in whose place images are read, do not count.
        """
        opening: Sequence[int] | None = getattr(getattr(policy.module, "layout", None), "opening", None)
        rows = [
            [token for token in (prompt.tokens if opening is None else opening) if token < vocabulary] or [vocabulary]
            for prompt in prompts
        ]
        if any(row == [vocabulary] for row in rows):
            raise ConfigError(
                f"sampler.repetition_penalty: a prompt has no token of the {vocabulary} that the model chooses among; "
                "leave it at 1"
            )
        width = max(map(len, rows), default=1)
        head = tensor_on(policy.device, [row + row[:1] * (width - len(row)) for row in rows]).view(len(rows), width)
        tokens = torch.cat([head, head[:, :1].expand(-1, longest)], 1)
        return cls(tokens, tensor_on(policy.device, [len(row) for row in rows]), width)

    def of(self, running: Running) -> Tensor:
        """Return the tokens of the running rows, some of them several times: long[K, T]."""
        return self.tokens[:, : self.longest + running.passes][running.rows]


def check_tokens(options: TokenOptions, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
    """Check, before a run's first step, the tokens that the options of its sampler name.

    Args:
        options: those of the sampler.
        policy: the run's policy.
        samplings: the sampling options of rollouts and evaluations.

    Raises:
        ConfigError: the options name tokens that there are not, or leave none to sample.
    """
    ids = TokenIds.read(options, policy.tokenizer)
    if ids.is_empty:
        return
    with torch.no_grad(), eval_mode(policy.module):
        vocabulary = policy.decoder([[0]], max_new_tokens=1).start().logits.shape[1]
    excluded = ids.offsets(vocabulary, policy.device).isneginf()
    for sampling in samplings:
        _check_minimum(excluded, policy, sampling)
        if not any(0 <= token < vocabulary and ids.may_be_sampled(token) for token in _eos(policy, sampling)):
            log.warning(
                "sampler.allowed_tokens or sampler.forbidden_tokens exclude EOS: responses end only at stop sequences "
                "and at gen.max_new_tokens", eos_token_ids=list(_eos(policy, sampling)),
            )  # fmt: skip
            break


def _eos(policy: Policy, sampling: SamplingConfig) -> Sequence[int]:
    return policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids


def _check_minimum(excluded: Tensor, policy: Policy, sampling: SamplingConfig) -> None:
    """Check that other tokens than EOS may be sampled before `min_new_tokens`."""
    ending = [token for token in _eos(policy, sampling) if 0 <= token < len(excluded)]
    remaining = excluded.logical_not().index_fill(0, tensor_on(excluded.device, ending), value=False)
    if sampling.min_new_tokens and not bool(remaining.any()):
        raise ConfigError(
            f"sampler.allowed_tokens: only EOS may be sampled, and gen.min_new_tokens = {sampling.min_new_tokens} "
            "excludes it at first; allow other tokens, or leave gen.min_new_tokens at 0"
        )
