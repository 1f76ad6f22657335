"""Sampling: continue prompts with any policy, and record the tokens, their log-probs and how each sequence ended."""

from __future__ import annotations

from rlcore.sampling.sampler import sample

__all__ = ["sample"]
