"""Runs that a logger records in laws of loggers: a stub of a run, and what it logs."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import Dropped, describe_error
from rlcore.loggers import Loggers
from rlcore.settings import TrainConfig
from rlcore_testing.law import LawBroken, Subject

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.ranks import Ranks

USUAL = {"loss/policy": 0.5, "kl/mean": 0.01, "reward/mean": -1.25, "time/step_s": 0.1}
ROWS = (
    {"prompt": "ab", "output": "cde", "length": 3, "ended": True, "reward": 1.5},
    {"prompt": "", "output": "", "length": 0, "ended": False, "reward": math.nan},
    {"prompt": "naïve 🙂", "output": "\x1b[31mred\x00\n\u2028 \ud7ff", "length": 9, "ended": True, "reward": None},
)  # fmt: skip
"""Rows of an evaluation, as `rlcore.training.evaluate` makes them; None is a missing score."""
CHAT: dict[str, Any] = {**ROWS[0], "messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]}
"""The row of a conversation."""
MARKS = {"0.7312451": "step 1", "0.7312452": "step 2", "0.7312453": "the evaluation"}
"""The loss in two steps and the mean reward of an evaluation, whose digits are in no other number: what is logged must
be found again."""
RUN = "run-1"
"""Name of the run's folder, which is in a folder of its own."""


@attrs.define(slots=False)
class RunStub:
    """A run with only the attributes of `rlcore.protocols.RunView`; access to others is recorded in `undeclared`."""

    dir: Path
    step: int = 0
    total_steps: int | None = 4
    config: TrainConfig = attrs.field(factory=TrainConfig)
    metrics: dict[str, float] = attrs.field(factory=dict)
    dropped: tuple[Dropped, ...] = ()
    undeclared: list[str] = attrs.field(factory=list)
    export_class: str = "AutoModelForCausalLM"
    is_stopping: bool = False
    headline: tuple[str, ...] = ()

    @functools.cached_property
    def ranks(self) -> Ranks:
        """Return the ranks of a run with one process."""
        from rlcore.ranks import Ranks  # imports torch

        return Ranks()

    def keep_folder(self) -> None:
        """Do nothing: there is no folder to delete."""

    def take_unreported(self) -> list[Dropped]:
        """Return no dropped components."""
        return []

    def request_stop(self, reason: str) -> None:
        """Do nothing: there is no run to end."""

    def __getattr__(self, name: str) -> Any:
        self.undeclared.append(name)
        raise AttributeError(f"loggers may use the attributes of rlcore.protocols.RunView; it has no '{name}'")


class _Poison:
    """An object that raises on every conversion, comparison and iteration."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("a crash that the conformance kit provokes")

    __float__ = __int__ = __repr__ = __str__ = __format__ = __lt__ = __gt__ = __len__ = __iter__ = _raise


def build(subject: Subject, run: RunView) -> Any:
    """Return the logger with its options, for a run."""
    return subject.it.target()(subject.config(), run)


@contextlib.contextmanager
def opened(subject: Subject) -> Iterator[tuple[Any, RunStub]]:
    """Build the logger for a run in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="rlcore-law-", ignore_cleanup_errors=True) as folder:
        run = RunStub(Path(folder) / RUN)
        run.dir.mkdir()
        yield build(subject, run), run


@contextlib.contextmanager
def closing(subject: Subject) -> Iterator[tuple[Any, RunStub]]:
    """Build the logger and close it at the end of the block."""
    with opened(subject) as (logger, run):
        try:
            yield logger, run
        finally:
            logger.close(None)


@contextlib.contextmanager
def accepting(what: str) -> Iterator[None]:
    """Raise LawBroken if the block raises."""
    try:
        yield
    except Exception as error:
        raise LawBroken(
            f"{what}: raised {describe_error(error)}; a logger that raises is dropped, so accept the input"
        ) from error


def log_usually(logger: Any, run: RunStub) -> None:
    """Log two steps, an evaluation, which have the MARKS, and completions."""
    *losses, reward = map(float, MARKS)
    for step, loss in enumerate(losses, start=1):
        run.step = step
        logger.metrics(step, {**USUAL, "loss/policy": loss})
    logger.metrics(2, {"eval/reward/mean": reward})
    logger.completions(2, [dict(row) for row in ROWS])


def spend(logger: Any, run: RunStub, *, crash: bool) -> None:
    """Use and close a logger through `Loggers`, as a run does; with `crash`, calls that raise precede the close."""
    loggers = Loggers([logger])
    with _not_strict():
        log_usually(loggers, run)
        if crash:
            poison: Any = _Poison()
            loggers.metrics(3, {"loss": poison})
            loggers.completions(3, [{"prompt": poison, "output": poison}])
        loggers.close(RuntimeError("a test error") if crash else None)


@contextlib.contextmanager
def _not_strict() -> Iterator[None]:
    """Unset RLCORE_STRICT_PLUGINS, with which a logger that raises ends the run."""
    before = os.environ.pop("RLCORE_STRICT_PLUGINS", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["RLCORE_STRICT_PLUGINS"] = before
