"""Tests that a plan of `run.shard=tp` states what ranks hold and send, as counted on two ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_served_ranks import CLOSE, ROOT, counted, peak, sent
from warm_python import WarmPython

from rlcore.config import merge
from rlcore.errors import ConfigError, ModelError
from rlcore_tools.plan.cluster import growing, plan_cluster
from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.sizes import Rates

Measure = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def measure(warm_python: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Train two ranks, and return what rank 0 has counted."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "e2e"))
    from e2e_processes import run_ranks

    def run(values: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / "run.json").write_text(json.dumps(merge(values, {"run": {"root": str(tmp_path)}})))
        child = str(ROOT / "tests" / "e2e" / "e2e_live_bytes.py")
        done = run_ranks(warm_python, 2, [child, str(tmp_path), str(tmp_path / "run.json")])
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads((tmp_path / "bytes-0.json").read_text())
        return found

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "e2e"))
    from planned_models import make_folder

    return make_folder(tmp_path / "start")


def check(found: Estimate, seen: dict[str, Any]) -> None:
    """Compare what is planned with what was counted after the first step, which has no moments yet."""
    held = sum(size for name, size in found.measured.held.items() if name != "rollouts")
    peaks = [step[-1:] if found.workload.num_sampled else step for step in seen["update"][1:]]
    update = min(max(step) for step in peaks if step)
    print(found.measured, found.raw.tensor, seen)
    assert peak(found, "start") == pytest.approx(seen["start"], rel=CLOSE)
    assert held == pytest.approx(min(seen["between"]), rel=CLOSE)
    assert peak(found, "update") == pytest.approx(update, rel=CLOSE)
    assert peak(found, "checkpoint") == pytest.approx(max(seen["checkpoint"][-1]), rel=CLOSE)
    assert sent(found) == pytest.approx(counted(seen), rel=CLOSE)


@pytest.mark.nightly
@pytest.mark.parametrize("micro", [0, 2])
def test_a_rank_of_sft_holds_and_sends_what_is_planned(micro: int, folder: Path, measure: Measure) -> None:
    from planned_models import sft_run

    values = sft_run(folder, "tp", micro)
    check(estimate(values, "test", world=2), measure(values))


@pytest.mark.nightly
def test_a_rank_of_ppo_holds_and_sends_what_is_planned(folder: Path, measure: Measure) -> None:
    from planned_models import ppo_run

    values = ppo_run(folder, "tp")
    found, seen = estimate(values, "test", world=2), measure(values)
    check(found, seen)
    assert peak(found, "sampling") == pytest.approx(min(max(step) for step in seen["generate"][1:] if step), rel=CLOSE)


@pytest.mark.slow
def test_a_rank_keeps_half_of_the_layers_and_all_of_the_rest(folder: Path) -> None:
    """The Llama has 6 layers of 4 matrices of attention and 3 of the feed-forward layer, and two norms each."""
    from planned_models import WORDS, sft_run

    found = estimate(sft_run(folder, "tp", 0), "test", world=2)
    divided, whole = 6 * (4 * 256 * 256 + 3 * 256 * 688), 2 * WORDS * 256 + (2 * 6 + 1) * 256
    assert found.measured.held["parameters that train"] == 4 * (divided // 2 + whole)
    assert found.measured.held["optimizer"] == pytest.approx(8 * (divided // 2 + whole), rel=1e-4)  # and step counters
    assert found.raw.tensor is not None
    assert found.raw.tensor.update.gradients == 4 * (divided // 2 + whole)
    assert found.raw.tensor.whole == 4 * whole


@pytest.mark.slow
def test_the_time_of_tp_has_the_head_for_the_rows_of_all_devices_and_no_other_number_of_devices(folder: Path) -> None:
    from planned_models import WORDS, sft_run

    found = estimate(sft_run(folder, "tp", 0), "test", world=2, device="cuda")
    plan = plan_cluster(found, 10**9, Rates(memory_bandwidth=1e30, intra_bandwidth=1e30))
    tokens = sum(plan.work.learned)
    computed = plan.matrices.update(plan.work.learned, recomputes=False) + 6 * WORDS * 256 * tokens
    assert plan.time(found.layout).total == pytest.approx(plan.rates.computing(computed))
    place = [layout.strategy for layout, _ in plan.options].index("tp")
    shares = [(devices, cells[place][0]) for devices, cells in growing(plan)]
    assert shares[0] == (2, pytest.approx(1.0))
    assert {share for _, share in shares[1:]} == {None}


@pytest.mark.parametrize(
    ("options", "world", "error", "said"),
    [
        ({"run": {"offload": True}}, 2, ConfigError, "run.offload: needs run.shard=fsdp"),
        ({"run": {"mixed_precision": "fp16"}}, 2, ConfigError, "run.mixed_precision = 'fp16' is not supported"),
        ({}, 3, ModelError, "which 3 processes do not divide"),
    ],
)
def test_what_a_run_of_tp_refuses_is_refused_by_its_plan(
    options: dict[str, Any], world: int, error: type[Exception], said: str, folder: Path
) -> None:
    from planned_models import sft_run

    with pytest.raises(error) as caught:
        estimate(merge(sft_run(folder, "tp", 0), options), "test", world=world)
    assert said in str(caught.value)
