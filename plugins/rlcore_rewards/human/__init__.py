"""People as the reward: a local web page where one or several people score or rank completions.

A completion gets the mean of the scores that people gave it. Where they rank the n different completions of a prompt,
one whose mean rank (ties share theirs) is r gets the score

    s = (n - r) / (n - 1),

1 for the best and 0 for the worst. Every judgement is appended to `judgements.jsonl` in the run's folder at once, and
what is in that file is not asked again.
"""

from __future__ import annotations

from rlcore_rewards.human.argilla_records import preferences

__all__ = ["preferences"]
