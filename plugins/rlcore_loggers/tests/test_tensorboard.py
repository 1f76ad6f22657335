"""Tests of the TensorBoard logger: the event file contains the metrics and completions of the run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util.tensor_util import make_ndarray

import rlcore
from rlcore.errors import RewardError
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer

TASK = {
    "trainer": {"name": "sft", "batch_size": 4, "optimizer": {"lr": 3e-3}},
    "samples": [list(sample) for sample in SAMPLES],
    "eval_prompts": list(PROMPTS[:3]),
    "metric_fn": lambda outputs: {"chars": [float(len(output)) for output in outputs]},
    "gen": {"max_new_tokens": 5},
    "eval": {"every": 2, "at_start": True},
    "checkpoint": {"every": 2, "keep_last": 10},
}


def train(folder: Path, *, logger: Any = "tensorboard", **changes: Any) -> Path:
    given = TASK | {"run": {"root": str(folder), "name": "run", **changes.pop("run", {})}} | changes
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), loggers=[logger], **given).run_dir


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def scalars(folder: Path) -> dict[tuple[int, str], list[float]]:
    events, found = read(folder), {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            found.setdefault((event.step, name), []).append(event.value)
    return found


def logged(run: Path) -> dict[tuple[int, str], float]:
    """Return the content of metrics.jsonl, which the core writes."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(row["step"], name): value for row in rows for name, value in row.items() if name != "step"}


def texts(folder: Path, tag: str) -> dict[int, str]:
    return {event.step: make_ndarray(event.tensor_proto)[0].decode() for event in read(folder).Tensors(tag)}


def assert_same_scalars(folder: Path, run: Path) -> None:
    written, expected = scalars(folder), logged(run)
    assert written.keys() == expected.keys()
    for place, value in expected.items():
        assert written[place] == [pytest.approx(math.nan if value is None else value, rel=1e-6, nan_ok=True)], place


def test_every_metric_is_a_scalar_under_its_own_key_at_its_own_step(tmp_path: Path) -> None:
    run = train(tmp_path, run={"steps": 4})
    assert_same_scalars(run / "tensorboard", run)
    names = {name for _, name in logged(run)}
    assert {"loss/total", "eval/chars", "time/step_s", "lr"} <= names
    assert {step for step, name in scalars(run / "tensorboard") if name == "loss/total"} == {1, 2, 3, 4}
    assert {step for step, name in scalars(run / "tensorboard") if name == "eval/chars"} == {0, 2, 4}


def test_options_are_logged_as_text_and_as_hyperparameters(tmp_path: Path) -> None:
    run = train(tmp_path, run={"steps": 2})
    written = texts(run / "tensorboard", "config/text_summary")
    config = (run / "config.yaml").read_text().splitlines()
    assert list(written) == [0]
    shown = textwrap.dedent(written[0]).splitlines()
    assert len(shown) > 30
    assert {"run:", "  seed: 0", "    lr: 0.003"} <= set(shown)
    assert set(shown) <= set(config)
    parts = {
        name: plugin_data_pb2.HParamsPluginData.FromString(content)
        for name, content in read(run / "tensorboard").PluginTagToContent("hparams").items()
    }
    begun = parts["_hparams_/session_start_info"].session_start_info.hparams
    assert begun["trainer.optimizer.lr"].number_value == 0.003
    assert begun["trainer.name"].string_value == "sft"
    assert parts["_hparams_/session_end_info"].session_end_info.status == 1  # a successful run
    (judged_by,) = parts["_hparams_/experiment"].experiment.metric_infos
    assert judged_by.name.tag == "eval/reward/mean"


@pytest.mark.parametrize("shown", [0, 2])
def test_completions_are_logged_as_texts(tmp_path: Path, shown: int) -> None:
    run = train(tmp_path, run={"steps": 2}, logger={"name": "tensorboard", "completions": shown})
    tags = {tag for tag in read(run / "tensorboard").Tags()["tensors"] if tag.startswith("completions")}
    assert tags == {f"completions/{i}/text_summary" for i in range(shown)}
    rows = [json.loads(line) for line in (run / "completions.jsonl").read_text().splitlines()]
    for i in range(shown):
        for step, text in texts(run / "tensorboard", f"completions/{i}/text_summary").items():
            row = [row for row in rows if row["step"] == step][i]
            assert text == (
                f"prompt\n\n    {row['prompt']}\n\noutput\n\n    {row['output'] or ' '}\n\n"
                f"length {row['length']}, ended {row['ended']}, chars {row['chars']}"
            )


def test_a_resumed_run_logs_no_step_twice(tmp_path: Path) -> None:
    def broken(outputs: list[str]) -> dict[str, list[float]]:
        broken.calls += 1
        if broken.calls == 4:  # the evaluation after step 6
            raise ValueError
        return TASK["metric_fn"](outputs)

    broken.calls = 0
    with pytest.raises(RewardError):
        train(tmp_path, run={"steps": 7}, metric_fn=broken, checkpoint={"every": 4, "keep_last": 10})
    run = tmp_path / "run"
    before = read(run / "tensorboard")
    assert [event.step for event in before.Scalars("loss/total")] == [1, 2, 3, 4, 5, 6]
    assert "_hparams_/session_end_info" not in before.PluginTagToContent("hparams")
    train(tmp_path, run={"steps": 7, "resume": str(run / "checkpoints" / "00000004")})
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert_same_scalars(run / "tensorboard", run)
    assert [event.step for event in read(run / "tensorboard").Scalars("loss/total")] == [1, 2, 3, 4, 5, 6, 7]
    assert list(texts(run / "tensorboard", "completions/0/text_summary")) == [0, 2, 4, 6, 7]


def test_a_run_that_starts_anew_removes_the_logged_events_of_the_old_one(tmp_path: Path) -> None:
    logger = {"name": "tensorboard", "log_dir": str(tmp_path / "all")}
    train(tmp_path, run={"steps": 3}, logger=logger)
    run = train(tmp_path, run={"steps": 2, "overwrite": True, "seed": 1}, logger=logger)
    assert not (run / "tensorboard").exists()
    assert_same_scalars(tmp_path / "all" / "run", run)


SCRIPT = """
import os, signal, sys, types
from pathlib import Path
from rlcore.settings import TrainConfig
from rlcore_loggers.config import TensorBoardConfig
from rlcore_loggers.tensorboard import TensorBoardLogger
run = types.SimpleNamespace(dir=Path(sys.argv[1]), step=0, total_steps=None, config=TrainConfig())
logger = TensorBoardLogger(TensorBoardConfig(flush_every_s=3600), run)
logger.metrics(1, {"loss/nan": float("nan"), "loss/inf": float("-inf"), "eval/reward/mean@temperature=0.5": 1.5})
logger.completions(1, [{"prompt": "a", "output": "``` <b> \\x1b[31m \\n    # x"}, {}])
logger.metrics(2, {"loss/nan": 0.0})
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
logger.close(ValueError() if sys.argv[2] == "error" else None)
"""


def log_in_a_process(folder: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), end], capture_output=True, timeout=600, check=False
    )
    assert done.returncode == (-9 if end == "kill" else 0), done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["well", "error"])
def test_nan_and_markup_are_logged_unchanged(tmp_path: Path, end: str) -> None:
    log_in_a_process(tmp_path, end)
    written = scalars(tmp_path / "tensorboard")
    assert math.isnan(written[1, "loss/nan"][0])
    assert written[1, "loss/inf"] == [-math.inf]
    assert written[1, "eval/reward/mean@temperature=0.5"] == [1.5]
    assert written[2, "loss/nan"] == [0]
    text = texts(tmp_path / "tensorboard", "completions/0/text_summary")[1]
    assert text == "prompt\n\n    a\n\noutput\n\n    ``` <b> \x1b[31m \n        # x\n\n"
    plugins = read(tmp_path / "tensorboard").PluginTagToContent("hparams")
    assert ("_hparams_/session_end_info" in plugins) == (end == "well")


@pytest.mark.slow
def test_a_killed_run_has_its_last_evaluation_on_disk(tmp_path: Path) -> None:
    log_in_a_process(tmp_path, "kill")
    assert (1, "loss/inf") in scalars(tmp_path / "tensorboard")
