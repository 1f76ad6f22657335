"""Helpers that start training processes, wait for them with a timeout, and compare their run folders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import torch
import warm_ranks
from safetensors.torch import load_file
from warm_python import WarmPython

HERE = Path(__file__).parent
TIMEOUT_S = 600.0


def inherited() -> dict[str, str]:
    """Return the environment of a training process: this one's, without the variables of rlcore and torchrun."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RLCORE_", "TORCHELASTIC"))}
    return kept | {"OMP_NUM_THREADS": "1"}


def run_process(
    arguments: list[str], *, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in its own session; processes it leaves running are killed."""
    process = subprocess.Popen(
        arguments, cwd=cwd, env=inherited() | environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def run_two_ranks(
    warm_python: WarmPython, arguments: list[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in two distributed processes."""
    return run_ranks(warm_python, 2, arguments, **environment)


def run_ranks(
    warm_python: WarmPython, world: int, arguments: list[str], *, local: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in `world` distributed processes, `local` on each machine, and join their outputs."""
    given = inherited() | environment
    timeout_s = TIMEOUT_S * max(1.0, world / 2)  # on a machine of two cores
    done = warm_ranks.run_ranks(warm_python, world, arguments, environment=given, timeout_s=timeout_s, local=local)
    out = "".join(each.stdout for each in done)
    done.sort(key=lambda each: abs(each.returncode))  # so that errors end with those of the rank that ended worst
    return subprocess.CompletedProcess(arguments, done[-1].returncode, out, "".join(each.stderr for each in done))


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines without timings."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.removeprefix("eval/").startswith(("time", "perf/"))} for row in rows]


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("[0-9]*"))


def assert_same_run(one: Path, other: Path) -> None:
    """Check that two runs left bitwise the same results, apart from timings."""
    from rlcore.checkpoints.state import load_state

    for name in ("metrics.jsonl", "completions.jsonl", "rollouts.jsonl"):
        assert (one / name).exists() is (other / name).exists()
        if (one / name).exists():
            assert lines(one / name) == lines(other / name)
    weights = sorted(path.relative_to(one) for path in one.rglob("model*/*.safetensors"))
    assert len(weights) >= 2
    for name in weights:
        if name.parts[0] == "model":
            assert_same(load_file(one / name), load_file(other / name))
    first, second = newest_checkpoint(one), newest_checkpoint(other)
    assert first.name == second.name
    for name in sorted(path.relative_to(first) for path in first.rglob("model/*.safetensors")):
        assert_same(load_file(first / name), load_file(second / name))
    for name in ("trainer.safetensors", "rng.safetensors"):
        states = [load_state(folder / name) for folder in (first, second)]
        for state in states:
            state.pop("elapsed_s", None)
            state.pop("metrics", None)
        assert_same(*states)


def assert_same(one: Any, other: Any, where: str = "") -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert one == other or (one != one and other != other), where  # noqa: PLR0124  nan
