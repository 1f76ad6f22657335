"""Sample tokens and log-probs from logits; pure functions of tensors.

Also in this file: the options of samplers that change logits, applied to the logits of each step of decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.ops import eval_mode
from rlcore.protocols import Policy
from rlcore.sampling import hash_positions
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, tensor_on
from rlcore_transformers.sampling.record import Running, TokenIds
from rlcore_transformers.sampling.token_options import TokenOptions

BLOCK = 256
"""Number of tokens whose probabilities are summed before the double-precision cumulative sum."""


def restrict(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    forbidden: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Return the logits of the sampling distribution; excluded tokens get -inf.

    Options apply in the order forbidden and allowed, temperature, top-k, top-p, min-p, that of `generate` of
    transformers. Tokens that tie with the last token kept by top-k or top-p are kept too.

    Args:
        logits: float[B, V].
        temperature: positive; divides the logits.
        top_k: keep the k most likely tokens, arXiv:1805.04833; 0 keeps all.
        top_p: keep the smallest set of most likely tokens with at least this total probability, arXiv:1904.09751; 1
            keeps all.
        min_p: keep the tokens with at least this fraction of the largest probability, arXiv:2407.01082; 0 keeps all.
        forbidden: long[K], tokens excluded in every row.
        allowed: bool[B, V], True for tokens that may be sampled.

    Returns:
        float[B, V]; `logits` itself if no option applies.
    """
    if allowed is not None:
        logits = torch.where(allowed, logits, float("-inf"))
    if forbidden is not None:
        logits = logits.index_fill(1, forbidden, float("-inf"))
    if temperature != 1.0:
        logits = logits / temperature
    if 0 < top_k < logits.shape[1]:
        logits = _drop_below(logits, logits.topk(top_k).values[:, -1:])
    if top_p < 1.0:
        logits = _drop_below(logits, _nucleus_floor(logits, top_p))
    if min_p > 0:  # the fraction does not depend on the normalisation, and so not on what top-k and top-p excluded
        logits = _drop_below(logits, logits.amax(1, keepdim=True) + math.log(min_p))
    return logits


def penalise(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Return logits with the repetition penalty of Keskar et al. (2019), arXiv:1909.05858.

    A logit of one of `tokens` is divided by the penalty if it is positive, and multiplied if it is negative; once,
    however often the token occurs. (The paper divides; a negative logit that is divided would rise.)

    Args:
        logits: float[B, V].
        tokens: long[B, T], of each row.
        penalty: positive; above 1 makes the tokens less likely.
    """
    chosen = logits.gather(1, tokens)
    return logits.scatter(1, tokens, torch.where(chosen < 0, chosen * penalty, chosen / penalty))


def row_uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Return `count` uniform random numbers in [0, 1) for each seed: float64[N, count], on the CPU.

    Number t of a row is the hash of its seed and t: the t-th output of SplitMix64 (Steele, Lea and Flood 2014, "Fast
    splittable pseudorandom number generators"), with 53 bits.

    Args:
        seeds: N numbers in 0..2^64-1.
        count: numbers for each.
    """
    hashed = hash_positions(np.array(seeds, dtype=np.uint64)[:, None], np.arange(count, dtype=np.uint64))
    return torch.from_numpy((hashed >> np.uint64(11)) * 2.0**-53)


def steer(logits: Tensor, advantages: Tensor, beta: float) -> Tensor:
    """Return logits of the distribution proportional to pi(a) exp(beta A(a)), arXiv:2206.11871.

    A constant added to a row does not change the distribution, so logits need not be normalised to log-probs.

    Args:
        logits: float[B, V], of pi.
        advantages: float[B, V], A = min Q - V.
        beta: weight of the advantages.
    """
    return torch.add(logits, advantages.to(logits.dtype), alpha=beta)


def _drop_below(logits: Tensor, floor: Tensor) -> Tensor:
    return logits.masked_fill(logits < floor, float("-inf"))


def _nucleus_floor(logits: Tensor, top_p: float) -> Tensor:
    """Return the smallest logit in the nucleus of each row: float[B, 1].

    On a CPU, a row is sorted completely only if its 256 (for a large vocabulary 4096) most likely tokens do not reach
    `top_p`. On an accelerator this check would need a synchronisation, so all of a row is sorted.
    """
    height, vocabulary = logits.shape
    total = logits.logsumexp(1, keepdim=True)
    floor = torch.empty_like(total)
    rows = torch.arange(height, device=logits.device)
    sizes = [size for size in (256, 4096) if size <= vocabulary // 4 and logits.device.type == "cpu"]
    for size in (*sizes, vocabulary):
        likeliest = logits[rows].topk(size).values
        running = (likeliest - total[rows]).exp().cumsum(1, dtype=torch.float64)
        inside = (running < top_p).sum(1, keepdim=True)  # the token that reaches the sum is the first one not counted
        floor[rows] = likeliest.gather(1, inside.clamp(max=size - 1))
        if size < vocabulary:
            rows = rows[inside[:, 0] >= size]
            if not len(rows):
                break
    return floor


def draw(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution: the first token whose cumulative sum exceeds u.

    The block of the vocabulary is found first, then the token in it: as exact as one cumulative sum in double precision
    over all tokens, in an eighth of its time at V = 50 000. A token of probability 0 is never drawn.

    Args:
        logits: float[B, V], not normalised; -inf for excluded tokens.
        uniforms: double[B], in [0, 1).

    Returns:
        tokens: long[B].
        logprobs: float[B], log softmax(logits) at the tokens.
    """
    height, vocabulary = logits.shape
    top = logits.amax(1, keepdim=True)
    weights = (logits - top).exp_()
    if vocabulary <= 4 * BLOCK:
        tokens, _, running = _invert(weights, uniforms[:, None])
    else:
        whole = vocabulary // BLOCK * BLOCK
        sums = weights[:, :whole].reshape(height, -1, BLOCK).sum(-1)
        if whole < vocabulary:
            sums = torch.cat([sums, weights[:, whole:].sum(1, keepdim=True)], 1)
        block, target, running = _invert(sums, uniforms[:, None])
        rest = 1 - (running.gather(1, block) - target) / sums.gather(1, block)
        columns = block * BLOCK + torch.arange(BLOCK, device=logits.device)
        inner = weights.gather(1, columns.clamp(max=vocabulary - 1)).masked_fill(columns >= vocabulary, 0.0)
        tokens = block * BLOCK + _invert(inner, rest.clamp_(0.0, 1 - 2**-53))[0]
    logprobs = logits.gather(1, tokens) - top - running[:, -1:].log().to(logits.dtype)
    return tokens.view(height), logprobs.view(height)


def draw_multinomial(logits: Tensor, uniforms: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw one token a row by `torch.multinomial` from normalised probabilities.

    Args:
        logits: float[B, V], not normalised; -inf where nothing may be drawn.
        uniforms: double[B]; not used, since `torch.multinomial` draws its own random numbers.
        generator: source of the random numbers; torch's own if left out.

    Returns:
        tokens: long[B].
        logprobs: float[B], of the tokens under softmax(logits).
    """
    del uniforms
    logprobs = logits.log_softmax(1)
    device = logits.device if generator is None else generator.device
    tokens = torch.multinomial(logprobs.exp().to(device), 1, generator=generator).to(logits.device)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find where the cumulative sum of `weights`, float[B, K], exceeds the fraction `uniforms`, double[B, 1], of it.

    Returns:
        index: long[B, 1], index of a positive weight.
        target: double[B, 1], the value to exceed.
        running: double[B, K], the cumulative sum.
    """
    running = weights.cumsum(1, dtype=torch.float64)
    target = uniforms * running[:, -1:]
    index = torch.searchsorted(running, target, right=True).clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, index)
    # By rounding, a parallel cumulative sum may increase at a weight of 0; the most likely entry then replaces it.
    index = torch.where(weight > 0, index, weights.argmax(1, keepdim=True))
    return index, target, running


def chosen_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log softmax(logits) at `tokens`: float[B].

    Args:
        logits: float[B, V].
        tokens: long[B].
    """
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(1)


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
