"""The rows of a run before its first step: their lengths, those that evaluations have too, and the first ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.training import Order, Run
from rlcore_tools.equal_rows import warnings_of
from rlcore_tools.screen import lengths_line, plain_text
from rlcore_tools.shown_rows import show_rows
from rlcore_transformers.data.rows import RowReader

NUM_ROWS = 3
FILE = "report/first rows.txt"
HELD_OUT = "eval_"
"""How the names of options of evaluation rows begin."""

log = get_logger("data")


def record_first_rows(run: RunView) -> None:
    """Log the lengths of a run on texts and which of its rows evaluations have too; write both to its report.

    The first rows are written there too, and logged at the level debug.
    """
    if not isinstance(run, Run) or run.models.kind not in ("policy", "scorer"):
        return
    sources, tokenizer = _sources(run), run.learner.tokenizer
    shown = [
        show_rows(
            name, rows, None, tokenizer, run.data.options, context=run.learner.max_length,
            num_rows=0 if name.startswith(HELD_OUT) else NUM_ROWS,
        )
        for name, rows in sources.items()
    ]  # fmt: skip
    held_out = {name: rows for name, rows in sources.items() if name.startswith(HELD_OUT)}
    trained = {name: rows for name, rows in sources.items() if name not in held_out}
    notes = list[str]()
    for each in shown:
        is_only = [*trained] == [each.name]
        left_out = _left_out(run, each.lengths.rows) if is_only else ""
        noun = "row" if each.lengths.rows == 1 else "rows"
        line = f"{each.name}: {each.lengths.rows} {noun}{left_out}; {lengths_line(each.lengths)}"
        (log.debug if each.name in held_out else log.info)(line)
    if run.data.inputs.samples is not None and run.data.sample_stream is not None:
        notes.append("samples: are streamed; neither their lengths nor rows that evaluations have too are counted")
        log.info(notes[-1])
    if not isinstance(tokenizer, RowReader):  # with images, equal texts may be different rows
        for warning in warnings_of(trained, held_out, tokenizer):
            notes.append(warning)
            log.warning(warning)
    if not (shown or notes):
        return
    text, file = "\n".join([*notes, *([""] if notes else []), plain_text(shown)]), run.dir / FILE
    get_logger("preview").debug("first rows\n" + text)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _sources(run: Run) -> dict[str, Sequence[Any]]:
    """Return the rows of a run that are read whole, by the names of their options."""
    data, given = run.data, run.data.inputs
    found: dict[str, Sequence[Any]] = {}
    if given.samples is not None and data.sample_stream is None:
        found["samples"] = run.samples
    if given.prompts is not None and run.models.has_policy:
        found["prompts"] = run.prompts
    if given.eval_samples is not None:
        found["eval_samples"] = data.eval_samples
    if given.eval_prompts is not None and run.models.has_policy:
        found["eval_prompts"] = data.eval_prompts
    return found


def _left_out(run: Run, count: int) -> str:
    """Return how many of the rows the trainer leaves out, if it takes them in one order."""
    orders = [each for each in run.data.orders if isinstance(each, Order)]
    if len(orders) != 1 or orders[0].count >= count:
        return ""
    return f", of which the trainer leaves out {count - orders[0].count}"
