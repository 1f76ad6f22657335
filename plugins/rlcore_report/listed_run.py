"""What the list of a dashboard shows of a run: the figures of its page, and the same ones found without parsing."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np

from rlcore.checkpoints.run_folder import RunDir
from rlcore.safe_text import visible
from rlcore_report.answer import Change, change_in, main_metrics
from rlcore_report.page_data import rounded
from rlcore_report.run_record import RunRecord, planned_steps
from rlcore_report.series import Series

SEARCHED = 8_000_000
"""Bytes of metrics.jsonl that are searched; of a longer one, its beginning and its end."""


@attrs.frozen
class ListedRun:
    """What the list shows of a run; `last` and `best` are the last value of the run's card and the best one."""

    name: str
    trainer: str
    model: str
    total: int | None
    step: int
    metric: str
    last: float | None
    best: float | None


def listed(run: RunRecord) -> ListedRun:
    """Return what the list shows of a run whose files are parsed, as its page shows it."""
    change = change_in(run.metrics, run.headline)
    trainer, model = run.option("trainer", "name"), run.option("model", "path")
    return _row(run.folder, change, str(trainer or ""), str(model or ""), run.total_steps, run.last_step)


def search(folder: Path) -> ListedRun:
    """Return what the list shows of a run without parsing its files."""
    run = RunDir(folder)
    config = head_of(run.config, 200_000).decode("utf-8", "replace")
    content = _searched(run.metrics)
    headline = (re.search(r"^# headline (.+)$", config, re.MULTILINE) or [""] * 2)[1].split()
    found = dict[str, Series]()
    for name in main_metrics(headline):
        values = _values(content, name)
        if values:
            found[name] = Series(np.arange(len(values)), np.array(values))
        if len(values) > 1:
            break
    last = re.compile(rb'\{"step": (\d{1,15})[,}]').match(content, content.rfind(b'\n{"step": ') + 1)
    step, steps, epochs = int(last[1]) if last else 0, _option(config, "run", "steps"), _option(config, "run", "epochs")
    passes = _values(content, "progress/epoch") if re.fullmatch(r"\d{1,15}(\.\d+)?", epochs) else []
    limit = int(steps) if steps.isdecimal() and len(steps) < 16 else None
    planned = planned_steps(limit, float(epochs) if passes else None, passes, step)
    trainer, model = _option(config, "trainer", "name"), _option(config, "model", "path")
    return _row(folder, change_in(found, headline), trainer, model, planned, step)


def _row(folder: Path, change: Change | None, trainer: str, model: str, total: int | None, step: int) -> ListedRun:
    return ListedRun(
        name=visible(folder.resolve().name),
        trainer=visible(trainer or "unknown"),
        model=visible(model or "unknown"),
        total=total,
        step=step,
        metric=visible(change.metric) if change else "",
        last=rounded(change.after) if change else None,
        best=rounded(change.best) if change else None,
    )


def head_of(file: Path, size: int) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    with suppress(OSError), file.open("rb") as content:
        return content.read(size)
    return b""


def _searched(file: Path) -> bytes:
    """Return the complete lines of a file, of a long one those at its beginning and its end."""
    with suppress(OSError), file.open("rb") as lines:
        size = os.fstat(lines.fileno()).st_size
        if size <= SEARCHED:
            content = lines.read()
        else:
            begin = lines.read(SEARCHED // 2)
            lines.seek(size - SEARCHED // 2)
            content = begin[: begin.rfind(b"\n") + 1] + lines.read().partition(b"\n")[2]
        return content[: content.rfind(b"\n") + 1]
    return b""


def _values(content: bytes, name: str) -> list[float]:
    """Return the values of a metric. Within a text of JSON, a quote beside its name would have a backslash."""
    pattern = re.compile(b'"' + re.escape(name.encode()) + rb'": (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[,}]')
    return [
        float(found[1]) for found in pattern.finditer(content) if content[found.start() - 1 : found.start()] != b"\\"
    ]


def _option(config: str, section: str, name: str) -> str:
    """Return a plain option of a configuration as every run writes it; empty if it is missing or null."""
    found = re.search(rf"^{section}:\n(?:  .*\n)*?  {name}: (.+)$", config, re.MULTILINE)
    text = found[1].strip() if found else ""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return "" if text in ("null", "~") else text
