"""Tests of the plan's arithmetic against figures that others have published."""

from __future__ import annotations

import attrs
import pytest

from rlcore_tools.plan.model_sizes import Group, Matrices, ModelSizes, Weight
from rlcore_tools.plan.planned_run import Draws
from rlcore_tools.plan.sizes import Placement, Rates
from rlcore_tools.plan.step_memory import Raw, UpdateBytes
from rlcore_tools.plan.strategies import model_states
from rlcore_tools.plan.wire import Work, round_time
from rlcore_tools.plan.workload import Workload


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_of_each_stage_are_those_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2019, figure 1: 7.5 billion parameters on 64 devices, fp16 with Adam's 12 bytes in fp32."""
    found = model_states(stage, 7.5e9, 64, weight=2, gradient=2, optimizer=12)
    assert found / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_weights_in_32_bits_take_as_much_as_in_the_paper_except_in_stage_2() -> None:
    found = [model_states(stage, 7.5e9, 64) / 1e9 for stage in (0, 2, 3)]
    assert found == pytest.approx([120.0, 31.4, 1.9], abs=0.05)  # the paper has 16.6 in stage 2


A100 = Rates(peak_flops=312e12, utilisation=0.55, memory_bandwidth=2.0e12, intra_bandwidth=300e9, inter_bandwidth=25e9)
"""Rates of the machines of Narayanan et al.: 8 A100 with NVLink, and 200 Gbit/s for each."""


def dense(parameters: float, layers: int, width: int) -> tuple[Matrices, Raw]:
    """Return a model whose weights are gathered in 16 bits, with activations computed again."""
    block = round(parameters / layers)
    weights = tuple(Weight(width, block, 4, trains=True, gathered=2) for _ in range(layers))
    group = Group(2 * block, 2 * block, 2 * block)
    sizes = ModelSizes(weights, (), 0, (group,) * layers, Group(0, 0, 0), 0, "")
    update = UpdateBytes(kept=0, most=0, gradients=0)
    raw = Raw(sizes, 0, 0, 0, 0, Draws((), 0), (), update, None, 1, recomputes=True)
    return Matrices(parameters, parameters, parameters, parameters, layers, width, 0.0), raw


def flops_of_a_device(parameters: float, layers: int, width: int, *, devices: int, rows: int, rates: Rates) -> float:
    """Return the operations of a device in a second, those of recomputation included, with `fsdp` on all devices."""
    matrices, raw = dense(parameters, layers, width)
    work = Work(Workload(batch_size=rows * devices), 0, 1, 0, 0, 0, 1, (2048,) * rows, 0)
    layout = Placement("fsdp", nodes=devices // 8, per_node=8, within_node=False)
    seconds = round_time(raw, matrices, work, layout, rates).total
    return matrices.update(work.learned, recomputes=True) / seconds


MEGATRON = [
    (174.6e9, 96, 12288, 384, 4, 144e12), (174.6e9, 96, 12288, 768, 2, 88e12), (174.6e9, 96, 12288, 1536, 1, 44e12),
    (529.6e9, 105, 20480, 640, 4, 138e12), (529.6e9, 105, 20480, 1120, 2, 98e12), (529.6e9, 105, 20480, 2240, 1, 48e12),
]  # fmt: skip
"""Narayanan et al. 2021, arXiv:2104.04473, table 2, ZeRO-3 without model parallelism: parameters, layers, width,
devices, rows of 2,048 tokens on a device, and operations of a device in a second."""


@pytest.mark.parametrize(("parameters", "layers", "width", "devices", "rows", "published"), MEGATRON)
def test_a_network_link_of_which_every_device_uses_all_of_its_own_gives_the_published_rates(
    parameters: float, layers: int, width: int, devices: int, rows: int, published: float
) -> None:
    """One ring through all devices uses one link of a machine at a time: an eighth of the bandwidth of eight."""
    rates = attrs.evolve(A100, inter_bandwidth=A100.inter_bandwidth / 8)
    found = flops_of_a_device(parameters, layers, width, devices=devices, rows=rows, rates=rates)
    assert found == pytest.approx(published, rel=0.3)


def test_rings_over_every_link_are_quicker_than_published_where_communication_counts() -> None:
    deviations = [
        flops_of_a_device(*model, devices=devices, rows=rows, rates=A100) / published
        for *model, devices, rows, published in MEGATRON
    ]
    assert deviations == pytest.approx([1.1, 1.7, 3.1, 1.1, 1.6, 2.9], abs=0.25)


def test_operations_of_a_token_give_the_published_utilisation_of_llama_7b() -> None:
    """IBM and Meta, 2024, "Maximizing training throughput using PyTorch FSDP": 3,700 tokens/s of an A100 are 57 %."""
    layers, width, wide, words = 32, 4096, 11008, 32000
    elements = layers * (4 * width**2 + 3 * width * wide) + width * words
    matrices = Matrices(elements, elements, elements, 0.0, layers, width, 0.0)
    found = matrices.update([4096], recomputes=False) / 4096 * 3700 / 312e12
    assert found == pytest.approx(0.57, rel=0.12)
