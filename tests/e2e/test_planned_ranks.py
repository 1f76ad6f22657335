"""Tests that `rlcore plan` states what each rank of a run holds and sends, for every strategy of sharding."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import run_process, run_ranks
from planned_models import make_folder, ppo_run, sft_run
from warm_python import WarmPython

from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.wire import of_round, of_step, work_of

CHILD = str(Path(__file__).with_name("e2e_live_bytes.py"))
CLOSE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def measure(warm_python: WarmPython, tmp_path: Path) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """Train in `world` processes, and return what rank 0 has counted."""

    def run(values: dict[str, Any], world: int) -> dict[str, Any]:
        file = tmp_path / "run.json"
        file.write_text(json.dumps({**values, "run": values["run"] | {"root": str(tmp_path)}}))
        arguments = [CHILD, str(tmp_path), str(file)]
        # A launcher's single process has buffers for its gradients too.
        alone = [sys.executable, *arguments]
        done = run_ranks(warm_python, world, arguments) if world > 1 else run_process(alone)
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads((tmp_path / "bytes-0.json").read_text())
        return found

    return run


def peak(found: Estimate, name: str) -> int:
    return next(each.peak for each in found.measured.phases if each.name == name)


def check_memory(found: Estimate, seen: dict[str, Any]) -> None:
    """Compare what is planned with what was counted after the first step.

    A backend's threads keep buffers of earlier operations for a while, so the smallest of equal steps counts.
    """
    if found.world > 1:
        assert peak(found, "start") == pytest.approx(seen["start"], rel=CLOSE)
    peaks = seen["update"]
    if found.workload.num_sampled:  # whole weights that sampled are freed at the start of a round's first step
        peaks = [step[-1:] for step in peaks]
    update = highest(peaks)
    held = sum(size for name, size in found.measured.held.items() if name != "rollouts")
    assert held == pytest.approx(min(seen["between"]), rel=CLOSE)
    assert peak(found, "update") == pytest.approx(update, rel=CLOSE)
    if found.layout.strategy == "fsdp":  # the trained model is written as a checkpoint is
        assert peak(found, "checkpoint") == pytest.approx(max(seen["checkpoint"][-1]), rel=CLOSE)


def highest(peaks: list[list[int]]) -> int:
    """Return the peak of a step, the smallest of those after the first, which has no moments yet."""
    return min(max(step) for step in peaks[1:] if step)


def sent(found: Estimate) -> float:
    """Return the bytes that a rank sends in a round, as planned."""
    work = work_of(found.subject, found.raw)
    rows = work.sampled * found.world
    once = of_round(found.raw, found.layout, work.workload, num_rows=rows, length=work.prompt + work.new)
    return sum(each.total for each in once) + work.steps * sum(each.total for each in of_step(found.raw, found.layout))


def check_traffic(found: Estimate, seen: dict[str, Any]) -> None:
    """Compare what a rank sends in its last round; an operation on whole tensors sends (N - 1) / N of them."""
    sizes = dict(seen["sent"])
    parts = sum(sizes.pop(name, 0) for name in ("allgather_", "all_gather_into_tensor"))  # operands are parts
    total = (
        sum(sizes.values()) + parts * found.world + sizes.get("allreduce_", 0)
    )  # a reduction to all is one to parts, and a gather
    assert sent(found) == pytest.approx(total * (found.world - 1) / found.world, rel=CLOSE)


SFT = [(1, "none", 0), (2, "none", 0), (3, "none", 1), (2, "fsdp", 0), (3, "fsdp", 1), (4, "fsdp", 0)]
ZERO = [(2, "zero2", 0), (3, "zero2", 1), (2, "zero3", 0), (4, "zero3", 0)]


@pytest.mark.nightly
@pytest.mark.parametrize(("world", "shard", "micro"), [*SFT, *ZERO])
def test_a_rank_of_sft_holds_and_sends_what_is_planned(
    world: int, shard: str, micro: int, folder: Path, measure: Callable[..., dict[str, Any]]
) -> None:
    values = sft_run(folder, shard, micro)
    found, seen = estimate(values, "test", world=world), measure(values, world)
    check_memory(found, seen)
    if world > 1:
        check_traffic(found, seen)


@pytest.mark.nightly
@pytest.mark.parametrize(("world", "shard"), [(2, "none"), (3, "fsdp"), (2, "zero2")])
def test_a_rank_of_ppo_holds_and_sends_what_is_planned(
    world: int, shard: str, folder: Path, measure: Callable[..., dict[str, Any]]
) -> None:
    values = ppo_run(folder, shard)
    found, seen = estimate(values, "test", world=world), measure(values, world)
    check_memory(found, seen)
    check_traffic(found, seen)
    assert peak(found, "sampling") == pytest.approx(highest(seen["generate"]), rel=CLOSE)
