"""The first rows of a run: in its report, and in the log at the level debug."""

from __future__ import annotations

from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.training import Run
from rlcore_tools.screen import plain_text
from rlcore_tools.shown_rows import show_rows

NUM_ROWS = 3
FILE = "report/first rows.txt"


def record_first_rows(run: RunView) -> None:
    """Write the first rows of a run on texts to its folder, where its report finds them, and log them."""
    if not isinstance(run, Run) or run.other is not None:
        return
    sources = []
    if run.inputs.samples is not None and run.sample_stream is None:
        sources.append(("samples", run.samples))
    if run.inputs.prompts is not None and run.scorer is None:
        sources.append(("prompts", run.prompts))
    shown = [show_rows(name, rows, None, run.tokenizer, run.data, num_rows=NUM_ROWS) for name, rows in sources]
    if not shown:
        return
    text, file = plain_text(shown), run.dir / FILE
    get_logger("preview").debug("first rows\n" + text)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
