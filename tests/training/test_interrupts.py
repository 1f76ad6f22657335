"""Tests of what the caller of `rlcore.train` learns of a signal that has ended the run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.training.api import train_from_config
from rlcore_testing.small import make_gpt2, make_tokenizer


class Stops:
    """Observer that ends the run at a step: by a signal, or by a request."""

    def __init__(self, how: signal.Signals | None, step: int) -> None:
        self.how, self.step = how, step

    def on_step(self, run: Any) -> None:
        if run.step == self.step:
            if self.how is None:
                run.request_stop("enough")
            else:
                signal.raise_signal(self.how)


def train(root: Path, how: signal.Signals | None, *, at: int = 2, steps: int = 4, **run: Any) -> rlcore.Result:
    return rlcore.train(
        make_gpt2(), trainer="sft", samples=[["a", "b"], ["c", "d"]], tokenizer=make_tokenizer(), loggers=[],
        observers=[Stops(how, at)], run={"root": str(root), "name": "run", "steps": steps, **run},
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_result_states_whether_a_signal_ended_the_run(number: signal.Signals, tmp_path: Path) -> None:
    stopped = train(tmp_path / "stopped", number)
    assert (stopped.was_interrupted, stopped.run.step) == (True, 2)
    resumed = train(tmp_path / "stopped", number, at=9, resume="auto")
    assert (resumed.was_interrupted, resumed.run.step) == (False, 4)
    requested = train(tmp_path / "requested", None)
    assert (requested.was_interrupted, requested.run.step) == (False, 2)
    in_the_last_step = train(tmp_path / "last", number, steps=2)
    assert (in_the_last_step.was_interrupted, in_the_last_step.run.step) == (False, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_of_several_runs_ends_once_the_interrupted_run_is_saved(
    number: signal.Signals, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt, match="run is saved at step 2"):
        train(tmp_path, number, raise_on_interrupt=True)
    assert (tmp_path / "run" / "checkpoints" / "00000002" / "manifest.json").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert train(tmp_path, number, at=9, resume="auto", raise_on_interrupt=True).run.step == 4
    with pytest.raises(KeyboardInterrupt, match="run is saved at step 2"):
        train(tmp_path / "last", number, steps=2, raise_on_interrupt=True)
    assert train(tmp_path / "requested", None, raise_on_interrupt=True).run.step == 2


def test_the_command_ends_as_usual_whatever_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_gpt2().save_pretrained(tmp_path / "gpt2")
    make_tokenizer().save_pretrained(tmp_path / "gpt2")
    (tmp_path / "stops.py").write_text(
        "import signal\ndef reward(outputs):\n    signal.raise_signal(signal.SIGINT)\n    return [1.0] * len(outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    values = {
        "model": {"path": str(tmp_path / "gpt2")}, "trainer": {"name": "ppo", "rollouts": 2, "batch_size": 2},
        "data": {"prompts": ["a", "b"], "reward_fn": "stops:reward"}, "gen": {"max_new_tokens": 2}, "loggers": [],
        "run": {
            "root": str(tmp_path), "name": "run", "steps": 3, "raise_on_interrupt": True,
            "check_functions": False,  # the check would send the signal before the first step
        },
    }  # fmt: skip
    result = train_from_config(values, "file")
    assert (result.was_interrupted, result.run.step) == (True, 1)
