"""Tests of the random numbers of rows: published values, uniformity, and independence of neighbours."""

from __future__ import annotations

import pytest
import torch

from rlcore.sampling import derive_seeds, draw_seeds
from rlcore_testing.rig.sampler_calls import chi_square_probability
from rlcore_transformers.sampling.draw import row_uniforms

CELLS = 16


def test_row_seeds_equal_numbers_of_splitmix64() -> None:
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    expected = [(output >> 11) / 2**53 for output in outputs]  # of Vigna's splitmix64.c with the seed 1234567
    assert row_uniforms([0, 1234567], 4)[1].tolist() == expected


@pytest.mark.parametrize(
    "seeds", [derive_seeds(7, range(400)), list(range(400)), draw_seeds(400, torch.Generator().manual_seed(0))],
    ids=["rows of a round", "consecutive seeds", "drawn seeds"],
)  # fmt: skip
def test_neighbouring_numbers_are_uniform_and_independent(seeds: list[int]) -> None:
    uniforms = row_uniforms(seeds, 300)
    assert uniforms.dtype == torch.float64
    assert float(uniforms.min()) >= 0
    assert float(uniforms.max()) < 1
    cells = (uniforms * CELLS).long()
    for one, other in ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:])):
        counts = torch.bincount((one * CELLS + other).flatten(), minlength=CELLS**2).double()
        assert chi_square_probability(counts, torch.full((CELLS**2,), 1 / CELLS**2)) > 1e-4
    mean_errors = (uniforms.mean(1) - 0.5) * (12 * 300) ** 0.5  # standard normal for each row
    assert abs(float(mean_errors.std()) - 1) < 0.15


def test_seeds_of_all_rows_of_all_rounds_differ_and_are_not_negative() -> None:
    seeds = [seed for number in range(50) for seed in derive_seeds(number, range(200))]
    assert len(set(seeds)) == 50 * 200
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63
    assert derive_seeds(3, [5, 2]) == [derive_seeds(3, range(9))[i] for i in (5, 2)]
