"""Law of samplers that can begin a round and return at once; part of `rlcore_testing.laws.samplers`."""

from __future__ import annotations

from rlcore_testing.law import Subject, law
from rlcore_testing.rig.sampler_calls import check_submissions, make_sampler, submits

SAMPLERS = "samplers"


@law(SAMPLERS, when=submits)
def submitted_rows_are_those_of_a_call(subject: Subject) -> None:
    """`collect` returns the rows that a plain call returns, whichever handle comes first, and each handle's once.

    Rows are those of the weights at the time of `submit`; if a handle is collected again, `collect` raises an error.
    """
    check_submissions(make_sampler(subject))
