"""Sampling: continue prompts with any policy, and record the tokens, their log-probs and how each sequence ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.sampling.sampler_checks import sample

__all__ = ["sample"]

__getattr__, __dir__ = lazy(__name__, __all__, {"rlcore.sampling.sampler_checks": ("sample",)})
