"""Techniques that make training faster without changing its results: each has one file and one row of a table.

The option in its row switches a technique off. To remove a technique, delete its file, its row and its option.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from rlcore.logging import get_logger
from rlcore_transformers.models.model_options import SpeedConfig

T = TypeVar("T")
NOT_MEASURED = "not measured"


class TechniqueRefused(Exception):
    """A technique cannot be used with a model. The message is the reason that is logged."""


class NothingToGain(TechniqueRefused):
    """A technique would change nothing for a model, so that its absence costs nothing."""


@attrs.frozen
class Technique:
    """One technique: a row of the table.

    Attributes:
        name: name in the log and in benchmarks.
        option: dotted option of a run's configuration; false switches the technique off.
        file: module that implements the technique, in this package or another.
        measured: speed or time with the technique compared with that without it, from benchmarks/techniques.csv.
    """

    name: str
    option: str
    file: str
    measured: str


TECHNIQUES = (
    Technique(
        "packing", "model.speed.packing", "rlcore_transformers.models.speed.packing",
        NOT_MEASURED + " alone; fine-tuning on film reviews, packed, is **2.5** times as fast as on padded batches of "
        "`transformers.Trainer`",
    ),
    Technique(
        "prefixes", "model.speed.prefixes", "rlcore_transformers.models.speed.packing",
        ".90 (.63 to .92) of the CPU seconds of the random walks",
    ),
    Technique(
        "attention_groups", "model.speed.attention_groups", "rlcore_transformers.models.speed.packing",
        "tokens per CPU second of fine-tuning: 1.16 (1.07 to 1.17) on film reviews, 1.11 (1.07 to 1.18) on GSM8K",
    ),
    Technique(
        "length_groups", "model.speed.length_groups", "rlcore_transformers.models.speed.activations",
        "film reviews, 32 at a time, 1.50 (GPT-J) and 1.28 (Bloom) times as fast",
    ),
    Technique(
        "frozen_trunk", "model.speed.frozen_trunk", "rlcore_transformers.models.speed.frozen_trunk",
        ".73 (6 layers, 144 wide) and .72 (8 layers, 256 wide) of the CPU seconds of random walks, 2 layers training",
    ),
    Technique(
        "fused_logprobs", "model.speed.fused_logprobs", "rlcore_transformers.models.speed.fused_logprobs",
        "vocabulary 50,000, 128 wide: 4.52 / 8.01 CPU seconds and 73 / 2257 MB with and without",
    ),
    Technique(
        "small_logprobs", "model.speed.small_logprobs", "rlcore_transformers.models.speed.fused_logprobs",
        "fine-tuning on film reviews, as a multiple of `transformers.Trainer`: 2.5 with, 2.28 without (two pairs)",
    ),
    Technique(
        "fused_activations", "model.speed.fused_activations", "rlcore_transformers.models.speed.activations",
        ".89 (.84 to 1.06) of the CPU seconds of the random walks",
    ),
    Technique(
        "packed_decoding", "model.speed.packed_decoding", "rlcore_transformers.cpu.packed_decoder",
        "1.07 (1.03 to 1.14) times the tokens of a CPU second in sampling",
    ),
    Technique(
        "shared_prompts", "model.speed.shared_prompts", "rlcore_transformers.cpu.packed_decoder",
        "1.60 (1.38 to 1.65) times the tokens of a CPU second, 8 samples of prompts of 160 tokens",
    ),
    Technique(
        "preallocated_cache", "model.speed.preallocated_cache", "rlcore_transformers.models.decoding.cache",
        "1.30 (1.27 to 1.51) times the tokens of a CPU second, 16 prompts of 1 to 256 tokens",
    ),
    Technique(
        "early_leaving", "sampler.early_leaving", "rlcore_transformers.sampling.sampler",
        "1.80 (1.53 to 1.90) times the tokens of a CPU second in sampling",
    ),
    Technique(
        "inverse_cdf", "sampler.inverse_cdf", "rlcore_transformers.sampling.draw",
        "2.39 (2.23 to 2.64) times the tokens of a CPU second, vocabulary 32,000, against `torch.multinomial`",
    ),
    Technique(
        "reused_logprobs", "gen.reused_logprobs", "rlcore.training.run_sampling",
        ".85 (.80 to 1.13) of the CPU seconds of the random walks",
    ),
    Technique(
        "fused_optimizer", "trainer.optimizer.options.fused", "rlcore_transformers.optimizers.builtin_optimizers",
        ".98 (.95 to 1.12) of the CPU seconds of the random walks",
    ),
)  # fmt: skip
"""All techniques, in the order of the log line."""

BY_NAME = {technique.name: technique for technique in TECHNIQUES}


@attrs.frozen(eq=False)
class SpeedReport:
    """Decisions about which techniques a model uses.

    Attributes:
        config: the section `model.speed`, with one switch per technique.
        reasons: for each technique decided so far, why it is off; an empty string if it is on.
        expected: techniques that are off because there is nothing to gain, or because one that they need is off.
    """

    config: SpeedConfig
    reasons: dict[str, str] = attrs.field(factory=dict)
    expected: set[str] = attrs.field(factory=set)

    def find(self, name: str, probe: Callable[[], T], fallback: T) -> T:
        """Return the result of `probe`, or `fallback` if `name` is switched off or is refused by `probe`."""
        if not getattr(self.config, name):
            self.reasons[name] = "switched off"
            return fallback
        try:
            result = probe()
        except TechniqueRefused as refusal:
            self.reasons[name] = str(refusal)
            if isinstance(refusal, NothingToGain):
                self.expected.add(name)
            return fallback
        self.reasons[name] = ""
        return result

    def needs(self, name: str, *others: str) -> None:
        """Switch `name` on, unless it is switched off or one of the techniques `others`, which it needs, is off."""
        off = next((other for other in others if self.reasons[other]), None)
        self.reasons[name] = f"{off} is off" if off else ""
        if off:
            self.expected.add(name)
        if not getattr(self.config, name):
            self.reasons[name] = "switched off"

    def refuse(self, name: str, reason: str) -> None:
        """Switch `name` off for `reason`, unless the configuration does so already."""
        self.reasons[name] = reason if getattr(self.config, name) else "switched off"

    def skip(self, name: str, reason: str) -> None:
        """Switch `name` off because there is nothing to gain from it."""
        self.refuse(name, reason)
        self.expected.add(name)

    def log(self, model: str) -> None:
        """Log which techniques are off for the model of class `model` and why; at the level debug, all of them."""
        events, names = get_logger("rlcore_transformers.models"), [name for name in BY_NAME if name in self.reasons]
        states = [f"{name} off ({reason})" if (reason := self.reasons[name]) else f"{name} on" for name in names]
        events.debug(f"speed: {', '.join(states)}", model=model)
        off: dict[str, list[str]] = {}
        for name in names:
            if self.reasons[name] and name not in self.expected:
                off.setdefault(self.reasons[name], []).append(name)
        if off:
            reasons = "; ".join(f"{', '.join(together)} off ({reason})" for reason, together in off.items())
            events.info(f"speed: {reasons}", model=model)
