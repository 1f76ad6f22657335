"""Generate the page of a run: what its class and each of its parts offer to a trainer."""

from __future__ import annotations

import attrs

from generators.docstrings import Docstring, Undocumented, read, signature
from generators.protocols import methods
from rlcore.training.models import Models
from rlcore.training.progress import Closing, Progress
from rlcore.training.run import Run
from rlcore.training.run_data import RunData
from rlcore.training.run_sampling import Sampling

PARTS = {"models": Models, "data": RunData, "sampling": Sampling, "progress": Progress, "closing": Closing}
"""Attribute of a run that is a part → its class."""
INTRODUCTION = """\
# One run

Generated from `rlcore/training/run.py` and the files beside it by `make docs`.

A trainer is built as `Trainer(config, run)`, and everything that it needs besides its options comes from `run`. What
most trainers use are names of the run itself: `run.build`, `run.updater`, `run.prompts`, `run.samples`, `run.rollout`,
`run.temperature` and `run.ranks`. The rest belongs to one of its parts. Loggers and observers receive the same object
and rely only on [`RunView`](protocols/RunView.md).
"""


def pages() -> dict[str, str]:
    """Return a mapping from the page's path to its text."""
    lines = [INTRODUCTION, *_section("run", Run)]
    for name, part in PARTS.items():
        described = read(part, part.__name__)
        lines += [f"## run.{name}", "", described.text, "", *_section(f"run.{name}", part)]
    return {"run.md": "\n".join(lines)}


def _section(path: str, part: type) -> list[str]:
    """Return the table of what a part offers, in the order of its definition."""
    described, rows = read(part, part.__name__), []
    public = [field.name for field in attrs.fields(part) if not field.name.startswith("_")]
    if list(described.attributes) != public:
        raise Undocumented(f"{part.__name__} has {public}, and its docstring describes {list(described.attributes)}")
    rows += [(f"{path}.{name}", meaning) for name, meaning in described.attributes.items()]
    for name, function in methods(part):
        if name.startswith("_"):
            continue
        is_property = not callable(vars(part)[name])
        shown = f"{path}.{name}" if is_property else signature(function, f"{path}.{name}").partition(" -> ")[0]
        rows.append((" ".join(shown.split()).replace("( ", "(").replace(", )", ")"), _meaning(read(function, name))))
    table = [
        f"| `{shown.replace('|', chr(92) + '|')}` | {meaning.replace('|', chr(92) + '|')} |" for shown, meaning in rows
    ]
    return ["| name | meaning |", "|---|---|", *table, ""]


def _meaning(docstring: Docstring) -> str:
    lead = docstring.lead.removeprefix("Return ")
    return lead[0].lower() + lead[1:]
