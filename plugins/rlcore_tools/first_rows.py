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
    if not isinstance(run, Run) or run.models.kind not in ("policy", "scorer"):
        return
    sources = []
    if run.data.inputs.samples is not None and run.data.sample_stream is None:
        sources.append(("samples", run.samples))
    if run.data.inputs.prompts is not None and run.models.has_policy:
        sources.append(("prompts", run.prompts))
    tokenizer, options = run.learner.tokenizer, run.data.options
    shown = [show_rows(name, rows, None, tokenizer, options, num_rows=NUM_ROWS) for name, rows in sources]
    if not shown:
        return
    text, file = plain_text(shown), run.dir / FILE
    get_logger("preview").debug("first rows\n" + text)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
