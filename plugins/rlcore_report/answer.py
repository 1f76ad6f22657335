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
from rlcore_report.metric_groups import LARGEST, Series
from rlcore_report.run_files import read_rows
from rlcore_report.run_record import RunRecord
from rlcore_report.samples_on_page import prompts_by_step, read_samples
from rlcore_report.variants import T_975, paired
from rlcore_report.verdicts import Verdict, verdicts

REWARDS = ("eval/reward/mean", "reward/mean")
ACCURACIES = ("reward/accuracy", "step/accuracy")
"""What reward models are trained for, in front of their mean score, whose level is arbitrary; a trainer names it."""
LOSSES = ("eval/loss/total", "loss/total", "eval/loss", "loss")
LARGEST_FILE = 100_000_000
"""Bytes of completions.jsonl beyond which no interval over its prompts is computed."""

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

    An accuracy that the trainer names comes first, then the reward, then what the trainer names, then losses.
    """
    named = sorted(headline, key=lambda name: name not in ACCURACIES)
    both = [each for name in named for each in (f"eval/{name}", name)]
    count = 2 * sum(name in ACCURACIES for name in headline)
    return list(dict.fromkeys([*both[:count], *REWARDS, *both[count:], *LOSSES]))


def change_of(run: RunRecord) -> Change | None:
    """Return how far the main metric has moved; None for a run without metrics."""
    change = change_in(run.metrics, run.headline)
    if change is not None and change.metric == REWARDS[0]:
        return _over_prompts(run, change)
    return change


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
    best = (min if "loss" in name else max)(series.known.tolist())
    spans = (int(steps[0]), int(steps[len(early) - 1])), (int(steps[-len(late)]), int(steps[-1]))
    return Change(name, float(early.mean()), float(late.mean()), best, spans, half, basis)


def _over_prompts(run: RunRecord, change: Change) -> Change:
    """Add the interval of the difference over the prompts of both evaluations, if their rewards are the metric's."""
    file = RunDir(run.folder).completions
    if not file.is_file() or file.stat().st_size > LARGEST_FILE:
        return change
    rewards: dict[int, dict[tuple[str, str], list[float]]] = {step: {} for step in change.steps}
    for row in read_rows(file, wanted=rewards.__contains__):
        reward = row.get("reward")
        if isinstance(reward, int | float) and abs(reward) < LARGEST:
            key = (str(row.get("prompt")), str(row.get("sampling", "")))
            rewards[row["step"]].setdefault(key, []).append(float(reward))
    if len(rewards) < 2:
        return change
    first, last = rewards.values()
    shared = [key for key in first if key in last]
    if len(shared) < 2:
        return change
    means = [[sum(side[key]) / len(side[key]) for key in shared] for side in (first, last)]
    found = paired(change.metric, "prompts", *means)
    same = np.allclose([found.a, found.b], [change.before, change.after], rtol=1e-3, atol=1e-6)
    return attrs.evolve(change, half_width=found.half_width, basis=f"{found.count} prompts") if same else change


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
    """Return the checkpoint with the best score, else the newest, and the line of Python that loads it."""
    found = []
    for file in sorted((run.folder / "checkpoints").glob("*/manifest.json")):
        with suppress(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
            manifest = json.loads(file.read_text(encoding="utf-8"))
            score = manifest.get("score")
            found.append((score if isinstance(score, int | float) else math.nan, int(manifest["step"]), file.parent))
    folder, score, step = run.folder / "model", math.nan, run.last_step
    if found:
        sign = -1 if run.option("checkpoint", "mode") == "min" else 1
        score, step, checkpoint = max(
            found, key=lambda each: (-math.inf if math.isnan(each[0]) else sign * each[0], each[1])
        )
        whole, folder = folder, checkpoint / "model"
        if step == run.last_step and not _loader(folder) and _loader(whole):
            folder = whole  # checkpoints of a pipeline have only what is trained
    if not folder.is_dir():
        return None
    metric = str(run.option("checkpoint", "metric") or "score")
    return {
        "step": step,
        "score": score,
        "metric": metric,
        "line": _line(folder),
    }


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
    found: Any = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_text(encoding="utf-8"))
    return found if isinstance(found, Mapping) else {}


def judged(run: RunRecord) -> list[Verdict]:
    """Return the verdicts of a run on disk."""
    rows = read_samples(RunDir(run.folder).rollouts).rows
    return verdicts(run.metrics, prompts_by_step(rows), run.config)


def in_one_sentence(found: Sequence[Verdict]) -> dict[str, str]:
    """Return the level of the worst verdict, and a sentence that has the likely cause and the remedy."""
    if not found:
        return {"level": "none", "name": "", "sentence": "There are too few metrics for a verdict."}
    worst = found[0]
    if worst.level == "good":
        return {
            "level": "good",
            "name": "No problem found",
            "sentence": f"None of {len(found)} checks found a problem.",
        }
    begun = "" if worst.step is None else f" from step {worst.step} on"
    remedy = f"; set {worst.option} to {worst.value}" if worst.option else ""
    return {"level": worst.level, "name": worst.name, "sentence": f"{worst.name}{begun}: {worst.evidence}{remedy}."}
