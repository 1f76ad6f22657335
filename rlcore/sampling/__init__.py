"""Continue prompts with a policy: what was drawn, how likely it was, and how it ended."""

from __future__ import annotations

from rlcore.sampling.loop import sample

__all__ = ["sample"]
