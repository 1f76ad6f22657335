"""Tests of callbacks of `transformers` as observers: real ones, and one that records its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import rlcore
from rlcore.errors import InputsError
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer


def train(folder: Path, *callbacks: TrainerCallback, scores: Any = None, **changes: Any) -> rlcore.Result:
    given = {
        "trainer": {"name": "sft", "batch_size": 4, "optimizer": {"max_grad_norm": 1.0}}, "gen": {"max_new_tokens": 2},
        "samples": [list(sample) for sample in SAMPLES], "eval_prompts": list(PROMPTS[:1]), "loggers": [],
        "metric_fn": lambda outputs: {"score": [next(scores)]}, "eval": {"every": 1, "at_end": False},
        "checkpoint": {"every": 2, "metric": "eval/score"}, "run": {"root": str(folder), "name": "run", "steps": 4},
    }  # fmt: skip
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), observers=list(callbacks), **{**given, **changes})


class Diary(TrainerCallback):
    """Writes down its events; ends the run after the third step."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        assert (type(args), type(state), type(control)) == (TrainingArguments, TrainerState, TrainerControl)
        assert (state.max_steps, args.output_dir[-3:], args.metric_for_best_model) == (4, "run", "eval_score")
        assert type(given["model"]).__name__ == "GPT2LMHeadModel"
        assert given["processing_class"].eos_token == "</s>"
        self.events.append("begin")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        known = {"loss", "learning_rate", "grad_norm", "epoch", "eval_score"} & set(logs)
        self.events.append(("log", state.global_step, sorted(known)))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        self.events.append(("step", state.global_step))
        control.should_save = True
        return TrainerControl(should_training_stop=True) if state.global_step == 3 else control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **given: Any) -> None:
        self.events.append(("evaluate", metrics["eval_score"], metrics["eval/score"], state.best_metric))

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.events.append(("save", state.global_step))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        raise AssertionError("there are no epochs here")

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.events.append(("end", len(state.log_history)))


def test_events_that_match_are_called_in_order_and_the_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = Diary()
    result = train(tmp_path, diary, scores=iter([2.0, 1.0, 3.0]))
    assert result.run.step == 3
    assert not result.run.dropped
    trained = ["epoch", "grad_norm", "learning_rate", "loss"]
    expected: list[Any] = ["begin"]
    for step, score, best in ((1, 2.0, None), (2, 1.0, 2.0), (3, 3.0, 2.0)):
        expected += [("step", step), ("log", step, trained), ("log", step, ["eval_score"])]
        expected += [("evaluate", score, score, best), *([("save", 2)] if step == 2 else [])]
    assert diary.events == [*expected, ("save", 3), ("end", 6)]
    shown = capsys.readouterr().err
    assert shown.count("events of a callback do not occur in rlcore") == 1
    assert "on_epoch_end" in shown
    assert shown.count("should_save") == 1
    assert "Diary.on_step_end set should_training_stop" in shown


def test_early_stopping_ends_the_run_once_the_metric_no_longer_improves(tmp_path: Path) -> None:
    result = train(tmp_path, EarlyStoppingCallback(2), scores=iter([1.0, 2.0, 2.0, 1.5, 9.0]), run={
        "root": str(tmp_path), "name": "run", "steps": 9})  # fmt: skip
    assert result.run.step == 4
    assert not result.run.dropped


def test_the_progress_bar_shows_the_steps_and_their_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(tmp_path, ProgressCallback(), scores=iter([1.0] * 4))
    assert not result.run.dropped
    shown = capsys.readouterr()
    assert "4/4" in shown.err
    assert "'loss': " in shown.out


class Failing(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        raise RuntimeError("the server is gone")


def test_a_callback_that_raises_is_named_with_the_hook_and_the_run_goes_on(tmp_path: Path) -> None:
    result = train(tmp_path, Failing(), scores=iter([1.0] * 4))
    assert result.run.step == 4
    (dropped,) = result.run.dropped
    assert str(dropped) == "observers[0] (Failing)  on_step at step 1: RuntimeError: the server is gone"


class Narrow(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any) -> None:
        """Take no keyword."""


def test_callbacks_are_checked_by_their_signatures(tmp_path: Path) -> None:
    said = r"Narrow\.on_log does not take .*on_log\(self, args, state, control, \*\*kwargs\)"
    with pytest.raises(InputsError, match=said):
        train(tmp_path, Narrow())
