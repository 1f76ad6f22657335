"""Tests of random state: after `restore_rng`, random numbers continue from the matching `capture_rng`."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore.checkpoints.state import capture_rng, load_state, restore_rng, save_state
from rlcore.errors import CheckpointError


def draw(generators: dict[str, torch.Generator]) -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.normal()),  # noqa: NPY002 (the global generator is under test)
        float(np.random.rand()),  # noqa: NPY002
        torch.rand(()).item(),
        torch.randn(17).sum().item(),
        *(torch.rand((), generator=generator).item() for generator in generators.values()),
    ]


def test_restored_random_generators_continue_where_they_were_saved(tmp_path: Path) -> None:
    generators = {"sampling": torch.Generator().manual_seed(1), "order": torch.Generator().manual_seed(2)}
    draw(generators)  # an odd number of draws leaves a cached normal number in the generators of Python and numpy
    save_state(tmp_path / "rng", capture_rng(generators))
    expected = [draw(generators), draw(generators)]
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    fresh = {"sampling": torch.Generator(), "order": torch.Generator()}
    restore_rng(load_state(tmp_path / "rng"), fresh)
    assert [draw(fresh), draw(fresh)] == expected


def test_saving_the_random_state_draws_no_random_number() -> None:
    torch.manual_seed(3)
    capture_rng({})
    first = torch.rand(())
    torch.manual_seed(3)
    assert torch.rand(()) == first


def test_a_random_state_in_memory_is_restored_too() -> None:
    generators = {"a": torch.Generator().manual_seed(0)}
    state = capture_rng(generators)
    expected = draw(generators)
    restore_rng(state, generators)
    assert draw(generators) == expected


def test_a_generator_the_state_lacks_is_named_and_nothing_is_changed() -> None:
    state = capture_rng({"sampling": torch.Generator()})
    torch.manual_seed(11)
    before = torch.get_rng_state()
    with pytest.raises(CheckpointError, match="'order', only of sampling"):
        restore_rng(state, {"order": torch.Generator()})
    assert torch.get_rng_state().equal(before)
