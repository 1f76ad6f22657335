"""Laws of what a page says first: the card of a run, its large charts, and texts that look as they should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import make_run, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.answer import best_checkpoint, change_of
from rlcore_report.html_page import readable_data
from rlcore_report.metric_groups import headline_charts
from rlcore_report.page_data import page_data
from rlcore_report.run_list import listed, search
from rlcore_report.run_record import read_run
from rlcore_report.samples_on_page import readable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n c", "a\tb\n c"),
        ("全角\u3000空白 a\u00a0b\u2009c", "全角\u3000空白 a\u00a0b\u2009c"),
        ("👩\u200d👩\u200d👧 ❤\ufe0f", "👩\u200d👩\u200d👧 ❤\ufe0f"),
        ("\u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937", "\u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937"),
        ("שלום\u200f C++", "שלום\u200f C++"),
        ("pay\u200cpal pay\u200dpal", r"pay\u200cpal pay\u200dpal"),
        ("abc\u202egnp.exe \u2066x\u2069", r"abc\u202egnp.exe \u2066x\u2069"),
        ("zero\u200bwidth \ufeff\u2060\u00ad", r"zero\u200bwidth \ufeff\u2060\xad"),
        ("\x1b[31m\x00\r\x7f\x85\u2028\ud800", r"\x1b[31m\x00\r\x7f\x85\u2028\ud800"),
        ("tag\U000e0041 a\u200fb", r"tag\U000e0041 a\u200fb"),
    ],
)  # fmt: skip
def test_only_characters_that_could_deceive_are_escaped(text: str, shown: str) -> None:
    assert readable(text) == shown


def test_a_trainer_names_the_large_charts_and_a_rule_names_those_of_others() -> None:
    names = ["reward/mean", "eval/reward/mean", "kl/mean", "kl/max", "loss/total", "rft/b", "rft/a", "zeta"]
    assert headline_charts(names, ["kl/", "rft/", "missing", "zeta", "loss/total"]) == ["kl/max", "rft/a", "zeta"]
    assert headline_charts(names, []) == ["reward/mean", "loss/total", "kl/mean"]
    assert headline_charts(["x"], []) == []


def test_the_card_of_a_run_names_its_best_checkpoint_and_the_line_that_loads_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=4, checkpoint={"mode": "max", "metric": "eval/reward/mean"})
    manifests = {1: '{"step": 1, "score": 0.5}', 2: '{"step": 2, "score": 0.9}', 3: '{"step": 3, "score": null}'}
    for step, manifest in {**manifests, 4: "[]", 5: "{", 6: '{"score": 7.0}'}.items():
        model = run / "checkpoints" / f"{step:08d}" / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text('{"architectures": ["T5ForConditionalGeneration"]}')
        (model.parent / "manifest.json").write_text(manifest)
    best = best_checkpoint(read_run(run))
    assert best is not None
    assert (best["step"], best["score"], best["metric"]) == (2, 0.9, "eval/reward/mean")
    model = run / "checkpoints" / "00000002" / "model"
    assert best["line"] == f'transformers.AutoModelForSeq2SeqLM.from_pretrained("{model}")'
    sees = '{"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}'
    for name, content, loader in (
        ("adapter_config.json", "{}", "peft.AutoPeftModelForCausalLM"),
        ("adapter_config.json", '{"task_type": "SEQ_2_SEQ_LM"}', "peft.AutoPeftModelForSeq2SeqLM"),
        ("adapter_config.json", '{"task_type": "SEQ_CLS"}', "peft.AutoPeftModelForSequenceClassification"),
        ("config.json", sees, "transformers.AutoModelForImageTextToText"),
        ("config.json", "[]", ""),
    ):
        (model / "config.json").write_text(content)
        (model / name).write_text(content)
        line = f'{loader}.from_pretrained("{model}")' if loader else f'"{model}"'
        assert best_checkpoint(read_run(run))["line"] == line  # type: ignore[index]
        (model / name).unlink()


def test_the_card_names_the_whole_model_if_its_last_checkpoint_has_only_what_is_trained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=4, checkpoint={"mode": "max", "metric": "eval/reward/mean"})
    for step, score in ((2, 0.1), (4, 0.2)):
        (run / "checkpoints" / f"{step:08d}" / "model" / "unet").mkdir(parents=True)
        (run / "checkpoints" / f"{step:08d}" / "manifest.json").write_text(f'{{"step": {step}, "score": {score}}}')
    (run / "model").mkdir()
    (run / "model" / "model_index.json").write_text("{}")
    line = f'diffusers.DiffusionPipeline.from_pretrained("{run / "model"}")'
    assert best_checkpoint(read_run(run))["line"] == line  # type: ignore[index]
    (run / "checkpoints" / "00000002" / "manifest.json").write_text('{"step": 2, "score": 0.3}')
    earlier = run / "checkpoints" / "00000002" / "model"
    assert best_checkpoint(read_run(run))["line"] == f'"{earlier}"'  # type: ignore[index]


def test_the_change_of_a_run_without_evaluations_is_over_its_first_and_last_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=10)
    RunDir(run).completions.unlink()
    write_lines(
        RunDir(run).metrics, [{"step": i, "reward/mean": value} for i, value in enumerate([1, 3, *[9] * 6, 5, 9])]
    )
    change = change_of(read_run(run))
    assert change is not None
    assert (change.metric, change.before, change.after, change.steps) == ("reward/mean", 2.0, 7.0, (0, 9))
    assert change.spans == ((0, 1), (8, 9))
    # variances 2 and 8 over two steps each, and the quantile of two degrees of freedom
    assert change.half_width == pytest.approx(4.303 * (2 / 2 + 8 / 2) ** 0.5)


@pytest.mark.parametrize(("trainer", "name"), [("reward", "reward/accuracy"), ("process_reward", "step/accuracy")])
@pytest.mark.parametrize("prefix", ["eval/", ""])
def test_the_answer_of_a_reward_model_is_its_accuracy_and_not_its_mean_score(
    tmp_path: Path, trainer: str, name: str, prefix: str
) -> None:
    """The figures are those of reward-good-0 of the labelled runs, whose mean score is 1.3 in between."""
    run = make_run(tmp_path / "a", steps=40, trainer={"name": trainer})
    with_headline(run, f"eval/{name}", name, "loss/total")
    accuracies, scores = [0.5234, 0.6641, 0.7109, 0.7266, 0.7188], [0.6075, 1.344, 1.264, 0.7802, 0.8911]
    write_lines(RunDir(run).metrics, [
        {"step": 10 * i, f"{prefix}{name}": accuracies[i], f"{prefix}reward/mean": scores[i], "loss/total": 1.0}
        for i in range(5)
    ])  # fmt: skip
    change = change_of(read_run(run))
    assert change is not None
    assert (change.metric, change.before, change.after) == (f"{prefix}{name}", 0.5234, 0.7188)
    for row in (listed(read_run(run)), search(run)):
        assert (row.metric, row.last, row.best) == (f"{prefix}{name}", 0.7188, 0.7266)


def test_a_reward_called_accuracy_is_no_answer_in_front_of_the_reward(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=10)
    write_lines(
        RunDir(run).metrics, [{"step": i, "reward/mean": i / 2, "reward/accuracy": i / 20} for i in range(1, 11)]
    )
    change = change_of(read_run(run))
    assert change is not None
    assert change.metric == "reward/mean"
    assert search(run).metric == "reward/mean"


def answer(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(readable_data([run]))["runs"][0]["answer"]
    return found


def with_headline(run: Path, *names: str) -> Path:
    config = RunDir(run).config
    config.write_text(
        re.sub("^# headline .+$", f"# headline {' '.join(names)}", config.read_text(), flags=re.MULTILINE)
    )
    return run


def test_the_answer_of_an_overfitted_run_is_its_held_out_loss_and_the_best_model_that_was_not_kept_is_named(
    tmp_path: Path,
) -> None:
    keep = {"metric": "eval/loss", "mode": "min"}
    run = make_run(tmp_path / "a", steps=40, trainer={"name": "sft"}, checkpoint=keep)
    with_headline(run, "eval/loss", "loss/total")
    RunDir(run).rollouts.unlink()
    rows = [{"step": i, "loss/total": 2.247 * (0.134 / 2.247) ** (i / 40)} for i in range(1, 41)]
    held_out = [{"step": step, "eval/loss": loss} for step, loss in ((0, 3.21), (20, 1.42), (40, 2.43))]
    write_lines(RunDir(run).metrics, [*rows, *held_out])
    for step, score in ((20, 1.42), (40, 2.43)):
        (run / "checkpoints" / f"{step:08d}" / "model").mkdir(parents=True)
        (run / "checkpoints" / f"{step:08d}" / "manifest.json").write_text(f'{{"step": {step}, "score": {score}}}')
    found = answer(run)
    assert [found["change"][name] for name in ("metric", "before", "after")] == ["eval/loss", 3.21, 2.43]
    assert [found["best"][name] for name in ("step", "isBest", "note")] == [20, True, ""]
    (run / "checkpoints" / "00000020" / "manifest.json").unlink()
    best = answer(run)["best"]
    assert (best["step"], best["isBest"]) == (40, False)
    assert (
        best["note"]
        == "eval/loss was better after step 20, 1.42; its model was not kept: checkpoint.keep_best=1 keeps it"
    )
    write_lines(RunDir(run).metrics, [{"step": 0, "eval/loss": 1.0}, {"step": 40, "eval/loss": 2.43}])
    best = answer(run)["best"]
    assert (best["isBest"], best["note"]) == (False, "eval/loss was better before training, 1")
    charts = {c["name"]: c["curves"] for g in page_data([read_run(run)])["groups"] for c in g["charts"]}
    assert list(charts) == ["loss/total"]  # the evaluation's loss and the training's share a chart


@pytest.mark.parametrize("prompt", ["", "the same text"])
def test_rows_are_paired_by_their_place_and_not_by_their_prompts(tmp_path: Path, prompt: str) -> None:
    """Differences 1, 2, 3, 4: mean 2.5, deviation 1.2910, so that the half width is 3.182 * 1.2910 / 2 = 2.054."""
    run = make_run(tmp_path / "a", steps=4)
    write_lines(RunDir(run).metrics, [{"step": 0, "eval/reward/mean": 0.0}, {"step": 4, "eval/reward/mean": 2.5}])
    write_lines(RunDir(run).completions, [
        {"step": step, "prompt": prompt, "reward": float(i * (step > 0))} for step in (0, 4) for i in (1, 2, 3, 4)
    ])  # fmt: skip
    change = change_of(read_run(run))
    assert change is not None
    assert (change.half_width, change.basis) == (pytest.approx(2.0542, abs=1e-3), "4 rows")


def test_several_samples_of_a_prompt_count_as_one_row(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=4, eval={"samples": 2})
    write_lines(RunDir(run).metrics, [{"step": 0, "eval/reward/mean": 0.0}, {"step": 4, "eval/reward/mean": 2.5}])
    write_lines(RunDir(run).completions, [
        {"step": step, "reward": float(i * (step > 0)) + by}
        for step in (0, 4) for i in (1, 2, 3, 4) for by in (-1, 1)
    ])  # fmt: skip
    change = change_of(read_run(run))
    assert change is not None
    assert (change.half_width, change.basis) == (pytest.approx(2.0542, abs=1e-3), "4 rows")  # as of one sample each


def test_an_accuracy_has_the_interval_of_its_pairs(tmp_path: Path) -> None:
    """1.96 * sqrt(.5 * .5 / 100 + .8 * .2 / 100) = .1255."""
    run = with_headline(make_run(tmp_path / "a", steps=4), "eval/reward/accuracy", "reward/accuracy")
    rows = [
        {"step": step, "eval/reward/accuracy": share, "eval/data/held_out": 100} for step, share in ((0, 0.5), (4, 0.8))
    ]
    write_lines(RunDir(run).metrics, rows)
    change = change_of(read_run(run))
    assert change is not None
    assert (change.half_width, change.basis) == (pytest.approx(0.12550, abs=1e-4), "100 held-out rows")


SENTENCES: dict[str, tuple[list[float], str, str]] = {
    "a rise that has ended": ([0.28, *[0.28 + 0.71 * (1 - 0.6**i) for i in range(1, 60)]], "good", "Learned: "),
    "noise": (np.random.default_rng(0).normal(0.5, 0.1, 60).tolist(), "none", "Not distinguishable from no change: "),
    "a rise that goes on": (
        [0.28 + 0.01 * i for i in range(60)],
        "good",
        "continue with run.resume=auto run.steps=120.",
    ),
}


@pytest.mark.parametrize(("values", "level", "text"), SENTENCES.values(), ids=SENTENCES)
def test_a_run_without_a_problem_says_what_it_has_learned(
    tmp_path: Path, values: list[float], level: str, text: str
) -> None:
    run = make_run(tmp_path / "a", steps=60)
    for file in (RunDir(run).completions, RunDir(run).rollouts):
        file.unlink()
    write_lines(RunDir(run).metrics, [{"step": i + 1, "reward/mean": value} for i, value in enumerate(values)])
    verdict = answer(run)["verdict"]
    assert verdict["level"] == level
    assert text in verdict["sentence"]
    assert " ± " in verdict["sentence"]
