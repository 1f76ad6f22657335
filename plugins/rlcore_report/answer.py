"""The answer that a run gives: its main metric before and after, its cost, its best checkpoint, and one verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.health.judged_run import ENOUGH, change_by
from rlcore_report.metric_groups import LARGEST, Series, plain_name
from rlcore_report.run_files import read_rows, read_whole
from rlcore_report.run_record import RunRecord
from rlcore_report.samples_on_page import prompts_by_step, read_samples
from rlcore_report.variants import T_975, paired
from rlcore_report.verdicts import Verdict, verdicts

HELD_OUT = ("eval/reward/mean", "eval/loss/total", "eval/loss")
TRAINED = ("reward/mean", "loss/total", "loss")
"""The main metrics of runs whose trainer names none that they have: those of evaluations before those of training."""
AUTO_CLASSES = {
    "ForCausalLM": "AutoModelForCausalLM", "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}  # fmt: skip
"""Ends of the names of classes of transformers, with the class that loads them by their folder."""
TASKS = {"SEQ_2_SEQ_LM": "Seq2SeqLM", "SEQ_CLS": "SequenceClassification"}
"""Tasks of adapters that have a class of peft beside that of causal language models."""


@attrs.frozen
class Change:
    """How far the main metric of a run has moved.

    Attributes:
        metric: its name.
        before, after: its means at the beginning and the end: of the first and the last evaluation, or of the first and
            the last fifth of the steps.
        best: its best value.
        spans: the first and the last step of each of the two.
        half_width: half the width of the 95 % interval of the difference by Student's t; nan if there is none.
        basis: what the interval is over, such as `64 prompts`.
    """

    metric: str
    before: float
    after: float
    best: float
    spans: tuple[tuple[int, int], tuple[int, int]]
    half_width: float
    basis: str

    @property
    def steps(self) -> tuple[int, int]:
        """Return the first step of `before` and the last of `after`."""
        return self.spans[0][0], self.spans[1][1]


def main_metric(names: Mapping[str, Series], headline: Sequence[str]) -> str:
    """Return the metric that says most; nothing without any: see `main_metrics`.

    A metric of evaluations is taken if it has two values at least.
    """
    found = [name for name in main_metrics(headline) if name in names and len(names[name].known)]
    return next((name for name in found if len(names[name].known) > 1), found[0] if found else "")


def main_metrics(headline: Sequence[str]) -> list[str]:
    """Return the metrics that may be the main one of a run, those in front that are preferred.

    What was held out comes before what was trained on, and each time what the trainer names before usual metrics.
    """
    named = [name for name in headline if name.startswith("eval/")]
    others = [name for name in headline if not name.startswith("eval/")]
    trained = [name.removeprefix("eval/") for name in named]
    held_out = [*named, *HELD_OUT[:1], *(f"eval/{name}" for name in others), *HELD_OUT[1:]]
    return list(dict.fromkeys([*held_out, *trained, *TRAINED[:1], *others, *TRAINED[1:]]))


def is_loss(metric: str) -> bool:
    """Return whether a lower value of a metric is the better one."""
    return "loss" in metric


def change_of(run: RunRecord) -> Change | None:
    """Return how far the main metric has moved; None for a run without metrics."""
    change = change_in(run.metrics, run.headline)
    if change is None or not change.metric.startswith("eval/"):
        return change
    pairs = run.metrics.get("eval/data/held_out")
    if "accura" in change.metric and pairs is not None and len(pairs.known):
        return _of_accuracy(change, int(pairs.known[-1]))
    return _over_rows(run, change)


def change_in(metrics: Mapping[str, Series], headline: Sequence[str]) -> Change | None:
    """Return how far the main one of some metrics has moved; None without any value."""
    name = main_metric(metrics, headline)
    if not name:
        return None
    series = metrics[name]
    early, late = (series.known[:1], series.known[-1:]) if name.startswith("eval/") else (series.early, series.late)
    steps = series.steps[np.isfinite(series.values)]
    half, basis = math.nan, ""
    if min(len(early), len(late)) > 1:
        degrees = len(early) + len(late) - 2
        quantile = T_975[degrees - 1] if degrees <= len(T_975) else 1.96
        half = quantile * math.sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late))
        basis = f"the first and the last {len(early)} steps"
    best = (min if is_loss(name) else max)(series.known.tolist())
    spans = (int(steps[0]), int(steps[len(early) - 1])), (int(steps[-len(late)]), int(steps[-1]))
    return Change(name, float(early.mean()), float(late.mean()), best, spans, half, basis)


def _of_accuracy(change: Change, count: int) -> Change:
    """Add the interval of the difference of two accuracies on the same rows, as if the rows were others.

    The same rows make the difference more certain than that, but which of them changed is not recorded.
    """
    spread = sum(max(share * (1 - share), 0.0) for share in (change.before, change.after))
    return attrs.evolve(change, half_width=1.96 * math.sqrt(spread / max(1, count)), basis=f"{count} held-out rows")


def _over_rows(run: RunRecord, change: Change) -> Change:
    """Add the interval of the difference over the rows of both evaluations, if their numbers are the metric's.

    Every evaluation has the same rows in the same order. Their prompts may all be one text, as those of environments
    and those of images are.
    """
    file = RunDir(run.folder).completions
    plain = change.metric.removeprefix("eval/")
    columns = ("reward",) if plain == "reward/mean" else (plain, plain.removesuffix("/mean"))
    found: dict[int, list[float]] = {step: [] for step in change.steps}
    for row in read_rows(file, wanted=found.__contains__):
        value = next((row[name] for name in columns if name in row), None)
        number = float(value) if isinstance(value, int | float) and abs(value) < LARGEST else math.nan
        found[row["step"]].append(number)
    first, last = (np.array(found[step]) for step in change.steps)
    if change.steps[0] == change.steps[1] or len(first) != len(last):
        return change
    times = run.option("eval", "samples")
    if type(times) is int and times > 1 and len(first) % times == 0:  # samples of one prompt are no further evidence
        first, last = (values.reshape(-1, times).mean(1) for values in (first, last))
    shared = np.isfinite(first) & np.isfinite(last)
    if shared.sum() < 2:
        return change
    difference = paired(change.metric, "rows", first[shared].tolist(), last[shared].tolist())
    same = np.allclose([difference.a, difference.b], [change.before, change.after], rtol=1e-3, atol=1e-6)
    basis = f"{difference.count} rows"
    return attrs.evolve(change, half_width=difference.half_width, basis=basis) if same else change


def spent(run: RunRecord) -> tuple[Series | None, Series | None]:
    """Return the seconds and the tokens of a run up to each step: of its steps, without evaluations and pauses."""
    seconds, rate = run.metrics.get("time/step_s"), run.metrics.get("perf/tokens_per_s")
    if seconds is None:
        return None, None
    times = np.nan_to_num(seconds.values)
    total = Series(seconds.steps, np.cumsum(times))
    if rate is None:
        return total, None
    at = np.isin(rate.steps, seconds.steps)
    places = np.searchsorted(seconds.steps, rate.steps[at], side="right") - 1
    return total, Series(rate.steps[at], np.cumsum(np.nan_to_num(rate.values[at]) * times[places]))


def best_checkpoint(run: RunRecord) -> dict[str, Any] | None:
    """Return the checkpoint with the best score, else the newest, and the line of Python that loads it.

    It is the best one only if it beats the first evaluation, that of the model before training if there was one. The
    note names a better evaluation whose model was not kept.
    """
    found = []
    for file in sorted((run.folder / "checkpoints").glob("*/manifest.json")):
        with suppress(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
            manifest = json.loads(read_whole(file))
            score = manifest.get("score")
            found.append((score if isinstance(score, int | float) else math.nan, int(manifest["step"]), file.parent))
    metric = str(run.option("checkpoint", "metric") or "score")
    mode = run.option("checkpoint", "mode") or ("min" if is_loss(metric) else "max")
    sign = -1 if mode == "min" else 1
    folder, score, step = run.folder / "model", math.nan, run.last_step
    if found:
        score, step, checkpoint = max(
            found, key=lambda each: (-math.inf if math.isnan(each[0]) else sign * each[0], each[1])
        )
        whole, folder = folder, checkpoint / "model"
        if step == run.last_step and not _loader(folder) and _loader(whole):
            folder = whole  # checkpoints of a pipeline have only what is trained
    if not folder.is_dir():
        return None
    is_best, note = _compared(run.metrics.get(metric), metric, sign, score, step)
    return {
        "step": step, "score": score, "metric": metric, "line": _line(folder), "is_best": is_best, "note": note,
    }  # fmt: skip


def _compared(series: Series | None, metric: str, sign: int, score: float, step: int) -> tuple[bool, str]:
    """Return whether a checkpoint is better than the first evaluation, and what its reader has to know."""
    if series is None or not len(series.known):
        return not math.isnan(score), ""
    values, steps = series.known, series.steps[np.isfinite(series.values)]
    place = int((sign * values).argmax())
    reached = score if not math.isnan(score) else sign * max(sign * values[steps == step], default=-math.inf)
    note = ""
    if sign * values[place] > sign * reached + 1e-9 * abs(reached) and steps[place] != step:
        where = "before training" if steps[place] == 0 else f"after step {steps[place]}"
        remedy = "" if steps[place] == 0 else "; its model was not kept: checkpoint.keep_best=1 keeps it"
        note = f"{metric} was better {where}, {values[place]:.4g}{remedy}"
    return not math.isnan(score) and not note and bool(step == steps[0] or sign * score > sign * values[0]), note


def _line(folder: Path) -> str:
    """Return the line of Python that loads a model's folder; of a folder of another form, its path."""
    path = json.dumps(str(folder), ensure_ascii=False)
    loader = _loader(folder)
    return f"{loader}.from_pretrained({path})" if loader else path


def _loader(folder: Path) -> str:
    """Return the class that loads a model's folder; empty if no library is known to."""
    if (folder / "adapter_config.json").exists():
        task = _read(folder / "adapter_config.json").get("task_type")
        return f"peft.AutoPeftModelFor{TASKS.get(str(task), 'CausalLM')}"
    if (folder / "model_index.json").exists():
        return "diffusers.DiffusionPipeline"
    config = _read(folder / "config.json")
    names = config.get("architectures") or ()
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith("ForConditionalGeneration") and "vision_config" in config:
        return "transformers.AutoModelForImageTextToText"
    return next((f"transformers.{auto}" for end, auto in AUTO_CLASSES.items() if name.endswith(end)), "")


def _read(file: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file; an empty one if it has none."""
    found: object = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_whole(file))
    return found if isinstance(found, Mapping) else {}


def judged(run: RunRecord) -> list[Verdict]:
    """Return the verdicts of a run on disk."""
    rows = read_samples(RunDir(run.folder).rollouts).rows
    return verdicts(run.metrics, prompts_by_step(rows), run.config)


def in_one_sentence(run: RunRecord, found: Sequence[Verdict], change: Change | None) -> dict[str, str]:
    """Return the level of the worst verdict, and a sentence that has the likely cause and the remedy.

    Of a run without a problem, the sentence says what it learned, or that nothing can be told.
    """
    if not found or change is None:
        return {"level": "none", "name": "", "sentence": "There are too few metrics for a verdict."}
    worst = found[0]
    if worst.level == "good":
        return _learned(run, change)
    begun = "" if worst.step is None else f" from step {worst.step} on"
    remedy = f"; set {worst.option} to {worst.value}" if worst.option else ""
    return {"level": worst.level, "name": worst.name, "sentence": f"{worst.name}{begun}: {worst.evidence}{remedy}."}


def _learned(run: RunRecord, change: Change) -> dict[str, str]:
    """Return what a run without a problem has learned, by the interval of its main metric."""
    by = change.after - change.before
    half = "" if math.isnan(change.half_width) else f" ({by:+.2g} ± {change.half_width:.2g}, over {change.basis})"
    moved = f"{change.metric} {change.before:.3g} → {change.after:.3g}{half}"
    if abs(by) <= change.half_width or by == 0:
        name = "No clear change"
        return {"level": "none", "name": name, "sentence": f"Not distinguishable from no change: {moved}."}
    if (by < 0) != is_loss(change.metric):
        return {"level": "warning", "name": "Worse", "sentence": f"Worse than before: {moved}."}
    certain = "" if half else "; one number each, so there is no interval"
    once = next((name for name in main_metrics(run.headline) if name.startswith("eval/") and name in run.metrics), "")
    if once and not change.metric.startswith("eval/"):
        value = f"{once} was measured once ({run.metrics[once].values[-1]:.3g}); eval.at_start=true shows its change"
        return {"level": "good", "name": "Learned its data", "sentence": f"Learned: {moved}. Held out, {value}."}
    if (total := run.total_steps) is not None and run.end.state == "finished" and _is_still_moving(run, change):
        further = f"still {'falling' if is_loss(change.metric) else 'rising'}: continue with run.resume=auto"
        sentence = f"Learned: {moved}{certain}; {further} run.steps={2 * total}."
        return {"level": "good", "name": "Learned, still moving", "sentence": sentence}
    return {"level": "good", "name": "Learned", "sentence": f"Learned: {moved}{certain}."}


def _is_still_moving(run: RunRecord, change: Change) -> bool:
    """Return whether the last third of the main metric, or of the training's, moves on by a tenth of the change."""
    trained = plain_name(change.metric)
    series = max(
        (run.metrics[name] for name in (change.metric, trained) if name in run.metrics), key=lambda s: len(s.known)
    )
    count = len(series.known) // 3
    if count < ENOUGH:
        return False
    known = np.isfinite(series.values)
    last = Series(series.steps[known][-count:], series.values[known][-count:])
    slope, error = change_by(last, int(last.steps[-1] - last.steps[0]))
    wanted = -1 if is_loss(change.metric) else 1
    return wanted * slope > max(3 * error, abs(change.after - change.before) / 10)
