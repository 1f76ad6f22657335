"""Policies built by an architecture under test, and comparisons of their outputs with expected ones.

Also in this file: a head that the laws of architectures and samplers bring, as an algorithm would
(`rlcore.protocols.SteeringHead`).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import PluginError
from rlcore.protocols import ArchitectureTraits, Learner, Policy, Trunk
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.law import LawBroken, Subject, require
from rlcore_testing.rig.reference_transformers import action_logprobs
from rlcore_testing.small import make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.model_options import Seq2SeqLMConfig

LENGTHS = (5, 11, 3, 8)
TOLERANCE = 1e-4
CLOSE = 1e-6
"""Tolerance for two runs of the same computation."""
FOLDERS = "the folder's"
"""Placeholder for the tokenizer in a model's folder."""


def examples(subject: Subject) -> list[Callable[[], PreTrainedModel]]:
    """Return factories of the models that an architecture is checked with: its `example_model`, or two of the kit's.

    The kit's are T5 and BART if the options include those of `seq2seq_lm`, otherwise GPT-2 and Llama.
    """
    try:
        own, options = ArchitectureTraits(subject.it.target()).example_model, subject.it.config_class()
    except PluginError:  # the_target_imports reports that
        own, options = None, None
    if own is not None:
        return [checked(own)]
    is_seq2seq = isinstance(options, type) and issubclass(options, Seq2SeqLMConfig)
    return [make_t5, make_bart] if is_seq2seq else [make_gpt2, make_llama]


@functools.cache
def checked(make: Callable[[], object]) -> Callable[[], Any]:
    """Return the `example_model` of an architecture, of which every call must return the same weights.

    Raises:
        LawBroken: two calls, with different states of torch's generator, returned different weights.
    """
    torch.manual_seed(1)
    first = _weights(make())
    torch.manual_seed(2)
    then = _weights(make())
    names = {**first, **then}
    off = [name for name in names if name not in first or name not in then or not first[name].equal(then[name])]
    if off:
        raise LawBroken(
            f"two calls of its `example_model` return different weights ({', '.join(off[:3])}), so no law can compare "
            "two models: call torch.manual_seed with a fixed seed in it, or build a module once and return copies"
        )
    return make


def _weights(model: object) -> dict[str, Tensor]:
    """Return the weights of a module, or of the modules that a pipeline of several has as attributes."""
    parts = {"": model} if isinstance(model, nn.Module) else vars(model)
    return {
        f"{part}.{name}".lstrip("."): weight
        for part, module in parts.items()
        if isinstance(module, nn.Module)
        for name, weight in module.state_dict().items()
    }


def is_of_transformers(subject: Subject) -> bool:
    """Return whether an architecture's models are those of `transformers`: it has no `reference_logprobs`."""
    try:
        return ArchitectureTraits(subject.it.target()).reference_logprobs is None
    except PluginError:  # the_target_imports reports that
        return True


def expected_logprobs(subject: Subject, model: Any, batch: Trajectories, temperature: float = 1.0) -> Tensor:
    """Return log-probs of every action token by `reference_logprobs`, or plain transformers: double[B, T], else zero.

    Each sequence is computed alone, without padding.

    Raises:
        LawBroken: `reference_logprobs` returns another shape.
    """
    if is_of_transformers(subject):
        return action_logprobs(model, batch, temperature)
    reference: Any = subject.it.target()
    expected = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, real in enumerate(batch.mask):
        at = real.nonzero()[:, 0]
        tokens = batch.tokens[row, at]
        with torch.no_grad():
            found: Tensor = reference.reference_logprobs(model, tokens.tolist())
        if found.dim() != 2 or len(found) != len(tokens):
            raise LawBroken(
                f"`reference_logprobs` should return float[{len(tokens)}, V] for {len(tokens)} tokens; it returned "
                f"{tuple(found.shape)}; return the log-probs of the token after each of them"
            )
        each = (found.double() / temperature).log_softmax(-1)
        expected[row, at[1:]] = each[:-1].gather(1, tokens[1:, None])[:, 0]
    return expected.masked_fill(~batch.action_mask, 0.0)


def takes_gpt2(subject: Subject) -> bool:
    """Return whether an architecture is checked with GPT-2 and Llama, whose parameter names the laws contain."""
    return make_gpt2 in examples(subject)


def build(
    subject: Subject, spec: Any, *, tokenizer: Any = None, changes: dict[str, Any] | None = None, **parts: Any
) -> Policy:
    """Build a policy with the architecture under test, always with the same seed.

    Args:
        subject: the architecture.
        spec: model, configuration or folder.
        tokenizer: tokenizer to pass; the kit's by default; FOLDERS passes None.
        changes: options that override those of the subject.
        parts: `value_head`, `reference`, `heads`.
    """
    torch.manual_seed(3)
    target: Any = subject.it.target()
    config = subject.config(**(changes or {}))
    passed = make_tokenizer() if tokenizer is None else tokenizer
    policy: Policy = target(spec, config, tokenizer=None if passed is FOLDERS else passed, **parts)
    return policy


def tokenizer_settings(tokenizer: Any) -> dict[str, Any]:
    """Return what components that share a tokenizer must leave as it is."""
    names = ("padding_side", "truncation_side", "model_max_length", "chat_template", "pad_token_id", "eos_token_id")
    return {"size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def make_dialogues(side: str = "right", columns: int = 13) -> Trajectories:
    """Return four sequences of different lengths, padded on `side`; one has several turns."""
    mask = torch.zeros(len(LENGTHS), columns, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        start = {"left": columns - length, "right": 0, "both": min(i, columns - length)}[side]
        mask[i, start : start + length] = True
    tokens = torch.full(mask.shape, 7)
    tokens[mask] = torch.randint(0, 30, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    actions = mask & (mask.cumsum(1) > 2)
    actions[1] &= tokens[1] % 3 != 0
    return Trajectories(tokens, mask, actions, torch.ones(len(LENGTHS), dtype=torch.bool))


@torch.no_grad()
def score(policy: Policy, batch: Trajectories, **options: Any) -> PolicyOutputs:
    """Score a batch without gradients; `options` are `entropy`, `logits` and `temperature`."""
    return policy.score(batch, **options)


@torch.no_grad()
def perturb(policy: Learner) -> None:
    """Add noise to all trainable parameters, as training would change them, and raise the policy's version."""
    generator = torch.Generator().manual_seed(9)
    for parameter in policy.module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)
    policy.version += 1


@contextmanager
def saved(policy: Learner, by: Literal["save_pretrained", "export"] = "save_pretrained") -> Iterator[Path]:
    """Save a policy in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as parent:
        folder = Path(parent) / "model"
        folder.mkdir()
        getattr(policy, by)(folder)
        yield folder


def require_close(
    seen: Tensor | None, expected: Tensor | None, what: str, advice: str, *, tolerance: float = TOLERANCE
) -> None:
    """Require two tensors to have the same shape and nearly equal entries; NaN never counts as equal."""
    if seen is None or expected is None:
        require(seen is expected, f"{what}: one is None and the other a tensor; {advice}")
        return
    require(
        seen.shape == expected.shape,
        f"{what} should have the shape {tuple(expected.shape)}; it has {tuple(seen.shape)}; {advice}",
    )
    off = (seen.double() - expected.double()).abs().nan_to_num(float("inf")).flatten()
    if not len(off):
        return
    worst = int(off.argmax())
    require(
        float(off[worst]) <= tolerance,
        f"{what} should be {float(expected.flatten()[worst]):.6f} (entry {worst} of the flattened tensor); it is "
        f"{float(seen.flatten()[worst]):.6f}; {advice}",
    )


NAME, OUTPUT = "probe", "ratings"


class ProbeHead(nn.Module):
    """Rate every token by a linear map of the hidden state, Linear(H, V); ratings less V steer sampling.

    Args:
        trunk: what it is built on.
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.fall = nn.Linear(trunk.width, trunk.vocabulary)

    def forward(self, hidden: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        """Return the rating of each chosen token and the token itself: float32[2, N]."""
        ratings = self.fall(hidden.float()).gather(1, chosen[:, None])[:, 0]
        return {OUTPUT: torch.stack([ratings, chosen.float()])}

    def advantages(self, hidden: Tensor, values: Tensor | None) -> Tensor:
        """Return the ratings of all tokens, less V: float32[B, V]."""
        ratings: Tensor = self.fall(hidden.float())
        return ratings if values is None else ratings - values[:, None]


PROBE = {NAME: ProbeHead}
"""The argument `heads` of an architecture."""
