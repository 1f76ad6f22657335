"""Tests of observers and loggers that a script passes to `rlcore.train` as objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import ProgressCallback

import rlcore
from rlcore.errors import InputsError, PluginError
from rlcore.hookspecs import Services, hookimpl
from rlcore.training import inputs
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.sampling.sampler import DefaultSampler


def train(folder: Path, *, steps: int = 3, **given: Any) -> rlcore.Result:
    run = {"root": str(folder), "name": "run", "steps": steps, **given.pop("run", {})}
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "sft", "batch_size": 4},
        samples=[list(sample) for sample in SAMPLES], run=run, **{"loggers": [], **given},
    )  # fmt: skip


class Watcher:
    """An observer of every hook, each with another part of the hook's arguments."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_run_start(self, run: Any) -> None:
        self.seen.append(("start", run.step))

    def on_step(self, metrics: Any) -> None:
        self.seen.append(("step", metrics["loss/total"]))

    @hookimpl
    def on_evaluate(self, run: Any, metrics: Any) -> None:
        self.seen.append(("evaluate", run.step, sorted(metrics)))

    def on_checkpoint(self, **given: Any) -> None:
        self.seen.append(("checkpoint", given["path"].name))

    def on_run_end(self, error: Any, run: Any = None) -> None:
        self.seen.append(("end", run.step, error))


class Recorder:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed: list[Any] = []
        self.rows: list[Any] = []

    def metrics(self, step: int, metrics: Any) -> None:
        self.steps.append(step)

    def completions(self, step: int, rows: Any) -> None:
        self.rows += rows

    def close(self, error: Any) -> None:
        self.closed.append(error)


def test_an_object_s_hooks_are_called_with_the_arguments_they_take_and_a_logger_object_logs(tmp_path: Path) -> None:
    watcher, recorder = Watcher(), Recorder()
    given = {
        "gen": {"max_new_tokens": 3}, "eval_prompts": list(PROMPTS[:2]), "eval": {"every": 2, "at_end": False},
        "metric_fn": lambda outputs: {"chars": [1.0 for _ in outputs]},
    }  # fmt: skip
    result = train(tmp_path, observers=[watcher], loggers=[recorder], **given)
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [("step", line["loss/total"]) for line in lines if "loss/total" in line]
    evaluated = ("evaluate", 2, sorted(name for name in lines[2] if name != "step"))
    assert len(losses) == 3
    assert watcher.seen == [
        ("start", 0), *losses[:2], evaluated, losses[2], ("checkpoint", "00000003"), ("end", 3, None),
    ]  # fmt: skip
    assert (recorder.steps, recorder.closed, len(recorder.rows)) == ([1, 2, 2, 3], [None], 2)
    config = (result.run_dir / "config.yaml").read_text()
    assert "# passed from Python, and to be passed again: observers[0] (Watcher)" in config
    assert "# passed from Python, and to be passed again: loggers[0] (Recorder)" in config
    again = Watcher()  # objects are given again to a resumed run, which needs none of them
    train(tmp_path, steps=4, run={"resume": "auto"}, observers=[again], **given)
    assert again.seen[0] == ("start", 3)
    assert train(tmp_path, steps=5, run={"resume": "auto"}, **given).run.step == 5


class Broken:
    def on_step(self, run: Any) -> None:
        if run.step == 2:
            raise ValueError("no more")


def test_an_observer_that_raises_is_named_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher = Watcher()
    result = train(tmp_path, observers=[Broken(), watcher])
    assert result.run.step == 3
    assert [name for name, *_ in watcher.seen].count("step") == 3
    (dropped,) = result.run.dropped
    assert str(dropped) == "observers[0] (Broken)  on_step at step 2: ValueError: no more"
    assert "observers[0] (Broken)" in capsys.readouterr().err


def test_in_strict_mode_an_observer_that_raises_ends_the_run_and_no_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole")
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match=r"observers\[0\] \(Broken\): on_step raised ValueError: no more"):
        train(tmp_path, observers=[Broken()])
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000002"]
    resumed = train(tmp_path, run={"resume": "auto"})
    assert resumed.metrics["loss/total"] == whole.metrics["loss/total"]


class Stopper:
    def on_step(self, run: Any) -> None:
        if run.step == 2:
            run.request_stop("that is enough")


def test_an_observer_can_end_the_run_which_another_call_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = train(tmp_path, observers=[Stopper()])
    assert stopped.run.step == 2
    assert (stopped.run_dir / "model" / "config.json").exists()
    assert "that is enough" in capsys.readouterr().err
    assert train(tmp_path, run={"resume": "auto"}).run.step == 3


class Misnamed:
    def on_step(self, run: Any, metric: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observers": [Recorder()]}, r"s\[0\] = .*Recorder.*: is no observer, .* on_step\(run, metrics\), "),
        ({"observers": [Watcher(), Watcher]}, r"observers\[1\] = Watcher: is a class; pass an object of it: Watcher"),
        ({"observers": Watcher()}, r"observers = .*Watcher.*: must be a list of objects"),
        ({"observers": [Misnamed()]}, r"observers\[0\] \(Misnamed\): hook on_step has no argument 'metric' \(did you"),
        ({"loggers": ["console", Watcher()]}, r"loggers\[1\] = .*Watcher.*: .* no method metrics\(step, metrics\) "),
        ({"loggers": [Recorder]}, r"loggers\[0\] = Recorder: is a class"),
    ],
)  # fmt: skip
def test_an_object_that_is_no_observer_or_logger_is_refused_before_the_run(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputsError, match=message):
        train(tmp_path, **given)
    assert not (tmp_path / "run").exists()


def test_a_callback_of_transformers_is_refused_where_no_plugin_adapts_it(tmp_path: Path) -> None:
    said = r"observers\[0\] \(ProgressCallback\): support of TrainerCallback comes with rlcore-tools, which is"
    with pytest.raises(InputsError, match=said):
        train(tmp_path, observers=[ProgressCallback()], plugins={"disable": ["rlcore-tools"]})


def test_a_plugin_makes_an_observer_of_another_librarys_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Steps:
        def __init__(self, seen: list[int]) -> None:
            self.seen = seen

        def on_step(self, run: Any) -> None:
            self.seen.append(run.step)

    def adapt(observer: Any) -> Steps | None:
        return Steps(observer) if isinstance(observer, list) else None

    monkeypatch.setattr(inputs, "services", lambda: Services(observer=adapt))
    seen: list[int] = []
    train(tmp_path, observers=[seen])
    assert seen == [1, 2, 3]


def test_the_model_and_the_sampler_of_a_run_observe_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked as observers are; one that raises is not asked again, and the run goes on."""
    seen: list[tuple[str, int]] = []

    def on_step(policy: ModelPolicy, run: Any) -> None:
        assert policy is run.models.policy
        seen.append(("model", run.step))

    def on_run_start(sampler: DefaultSampler) -> None:
        raise ValueError("not now")

    monkeypatch.setattr(ModelPolicy, "on_step", on_step, raising=False)
    monkeypatch.setattr(DefaultSampler, "on_run_start", on_run_start, raising=False)
    monkeypatch.setattr(DefaultSampler, "on_step", lambda _, run: seen.append(("sampler", run.step)), raising=False)
    result = train(tmp_path, steps=2)
    assert seen == [("model", 1), ("model", 2)]
    assert [each for each in result.run.dropped if "default" in str(each)]
    assert "default" not in str(result.run.observers.plugins)
