"""Say where a run's time went: phases by one clock, as a table and as a trace (`run.profile`)."""

from __future__ import annotations

from rlcore.profiling.marks import phase

__all__ = ["phase"]
