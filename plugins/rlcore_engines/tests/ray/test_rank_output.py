"""Tests of the lines that ranks write at the same time."""

from __future__ import annotations

import pytest

from rlcore_engines.ray.agent import ERR, OUT
from rlcore_engines.ray.launch import Lines


def test_no_line_of_a_rank_is_cut_by_another_s(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = Lines()
    for rank, number, text in (
        (0, OUT, b"rank"), (1, OUT, b"rank 1 of 2\nsteps"), (1, ERR, b"warn"), (0, OUT, b" 0 of 2\n"),
        (1, OUT, b":  7%\r"), (0, OUT, b"no end"), (1, ERR, b"ing\n"),
    ):  # fmt: skip
        lines.write(rank, number, text)
    assert capfdbinary.readouterr() == (b"rank 1 of 2\nrank 0 of 2\nsteps:  7%\r", b"warning\n")
    lines.end(1)
    assert capfdbinary.readouterr() == (b"", b"")
    lines.end(0)
    assert capfdbinary.readouterr() == (b"no end", b"")
