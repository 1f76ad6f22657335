"""Tests that a plan with a sampler elsewhere states what ranks hold and send, as counted on two ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmPython

from rlcore.config import merge
from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.wire import of_round, of_step, work_of

ROOT = Path(__file__).resolve().parents[4]
CHILD = str(Path(__file__).with_name("served_bytes.py"))
CLOSE = 0.05
PIECE = 2**21
"""Bytes of a file of weights, of which a small model then has several."""
WAITING = {"url": "http://127.0.0.1:9", "check_rows": 0}
"""A server that is not asked: what reads weights is a stand-in in the run."""
SAMPLERS: dict[str, dict[str, Any]] = {
    "whole": {"name": "ray", "num_actors": 1},
    "stream": {"name": "vllm", **WAITING},
    "nothing": {"name": "openai", "url": "http://127.0.0.1:9/v1", "model": "other"},
}


@pytest.fixture
def measure(warm_python: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Train two ranks, and return what rank 0 has counted."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "e2e"))
    from e2e_processes import run_ranks

    def run(values: dict[str, Any], reads: str) -> dict[str, Any]:
        (tmp_path / "run.json").write_text(json.dumps(merge(values, {"run": {"root": str(tmp_path)}})))
        done = run_ranks(warm_python, 2, [CHILD, str(tmp_path), str(tmp_path / "run.json"), reads])
        assert done.returncode == 0, done.stderr[-3000:]
        counted = [json.loads((tmp_path / f"{name}-0.json").read_text()) for name in ("asked", "held")]
        return counted[0] | counted[1]

    return run


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run of PPO with a KL penalty, whose weights two ranks divide."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "e2e"))
    monkeypatch.setattr("rlcore_engines.vllm.weights.PIECE", PIECE)
    from planned_models import make_folder, ppo_run

    run = ppo_run(make_folder(tmp_path / "start"), "fsdp", epochs=1)
    return merge(run, {"run": {"steps": 3}})


@pytest.mark.slow
def test_a_pass_in_bf16_keeps_16_bit_copies_of_all_whole_weights_or_of_one_block(values: dict[str, Any]) -> None:
    """The Llama has 6 blocks of 4 matrices of attention and 3 of the feed-forward layer."""
    copies = 2 * (4 * 256 * 256 + 3 * 256 * 688)
    sizes = {}
    for reads in ("whole", "stream"):
        chosen = {"sampler": SAMPLERS[reads], "run": {"mixed_precision": "bf16"}}
        phases = {each.name: each for each in estimate(merge(values, chosen), "test", world=2).measured.phases}
        sizes[reads] = phases["scoring"].parts["one pass"]
    assert sizes["stream"] >= copies
    assert 5 * copies <= sizes["whole"] - sizes["stream"] <= 6 * copies


def peak(found: Estimate, name: str) -> int:
    return next(each.peak for each in found.measured.phases if each.name == name)


def check(found: Estimate, seen: dict[str, Any]) -> None:
    """Compare what is planned with what was counted after the first step."""
    held = sum(size for name, size in found.measured.held.items() if name != "rollouts")
    between = min(seen["between"])
    assert held == pytest.approx(between, rel=CLOSE)
    sampling, scoring = (between + seen[name][1] for name in ("sampling", "scoring"))
    rollouts = found.measured.held["rollouts"]
    print(found.raw.engines, [(each.name, each.peak) for each in found.measured.phases], between, sampling, scoring)
    assert peak(found, "sampling") - rollouts == pytest.approx(sampling, rel=CLOSE)
    assert peak(found, "scoring") == pytest.approx(scoring, rel=CLOSE)


def sent(found: Estimate) -> float:
    """Return the bytes that a rank sends in a round, as planned."""
    work = work_of(found.subject, found.raw)
    rows = work.sampled * found.world
    once = of_round(found.raw, found.layout, work.workload, num_rows=rows, length=work.prompt + work.new)
    return sum(each.total for each in once) + work.steps * sum(each.total for each in of_step(found.raw, found.layout))


def counted(seen: dict[str, Any]) -> float:
    """Return the bytes that a rank of two has sent in its last round, from the operands of collective operations."""
    sizes = dict(seen["sent"])
    parts = sum(sizes.pop(name, 0) for name in ("allgather_", "all_gather_into_tensor"))  # operands are parts
    twice = sum(sizes.get(name, 0) for name in ("allreduce_", "all_reduce"))  # to parts, and a gather
    return (sum(sizes.values()) + parts * 2 + twice) / 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("reads", "mixed"), [*((reads, "no") for reads in SAMPLERS), ("whole", "bf16"), ("stream", "bf16")]
)
def test_a_rank_completes_for_a_sampler_elsewhere_what_is_planned(
    reads: str, mixed: str, values: dict[str, Any], measure: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bf16, a pass keeps 16-bit copies of whole weights, or of one block's if it completes one at a time."""
    monkeypatch.setattr("rlcore_engines.vllm.weights.PIECE", 0)  # the stand-in keeps no tensor
    values = merge(values, {"run": {"mixed_precision": mixed}})
    found, seen = estimate(merge(values, {"sampler": SAMPLERS[reads]}), "test", world=2), measure(values, reads)
    assert (seen["held"][1] > 0) == (reads == "whole")
    check(found, seen)
    assert sent(found) == pytest.approx(counted(seen), rel=CLOSE)


@pytest.mark.nightly
@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_a_rank_whose_weights_reach_a_server_holds_what_is_planned(
    mixed: str, values: dict[str, Any], measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "plugins/rlcore_engines/tests/vllm"))
    from vllm_stand_in import StandIn

    server = StandIn()
    try:
        served = merge(values, {"sampler": {"name": "vllm", "url": server.url}, "run": {"mixed_precision": mixed}})
        found, seen = estimate(served, "test", world=2), measure(served, "vllm")
    finally:
        server.close()
    assert seen["held"][1] == 0
    check(found, seen)
    assert sent(found) == pytest.approx(counted(seen), rel=CLOSE)
