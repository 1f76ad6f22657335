"""Laws about loggers, given what a run gives them: numbers that are none, keys that come and go, text of any kind."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import Dropped, describe_error
from rlcore.loggers import Loggers
from rlcore.protocols import RunView
from rlcore.settings import TrainConfig
from rlcore.testing.law import LawBroken, Subject, law, require

if TYPE_CHECKING:
    from rlcore.ranks import Ranks

LOGGERS = "loggers"
USUAL = {"loss/policy": 0.5, "kl/mean": 0.01, "reward/mean": -1.25, "time/step_s": 0.1}
ROWS = (
    {"prompt": "ab", "output": "cde", "length": 3, "ended": True, "reward": 1.5},
    {"prompt": "", "output": "", "length": 0, "ended": False, "reward": math.nan},
    {"prompt": "naïve 🙂", "output": "\x1b[31mred\x00\n\u2028 \ud7ff", "length": 9, "ended": True, "reward": None},
)  # fmt: skip
"""Rows of an evaluation, as `rlcore.training.evaluate` makes them: None is a score nobody gave."""
GRACE_S = 5.0
"""How long threads may take to end once a logger was closed."""


@attrs.define(slots=False)
class StandIn:
    """Stand for a run, with what `rlcore.protocols.RunView` names and nothing else."""

    dir: Path
    step: int = 0
    total_steps: int | None = 4
    config: TrainConfig = attrs.field(factory=TrainConfig)
    metrics: dict[str, float] = attrs.field(factory=dict)
    dropped: tuple[Dropped, ...] = ()
    asked: list[str] = attrs.field(factory=list)

    @functools.cached_property
    def ranks(self) -> Ranks:
        """Return this process as the only one."""
        from rlcore.ranks import Ranks  # which needs torch

        return Ranks()

    def take_unreported(self) -> list[Dropped]:
        """Return nothing: nothing was dropped."""
        return []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(
            f"a logger may use what rlcore.protocols.RunView names of a run, and '{name}' is not there"
        )


@law(LOGGERS)
def it_uses_only_what_a_run_promises(subject: Subject) -> None:
    """Of the run a logger uses what `rlcore.protocols.RunView` names: its folder, steps and configuration."""
    with _opened(subject) as (logger, run), contextlib.suppress(AttributeError):
        _log_usually(logger, run)
        logger.close(None)
    require(not run.asked, f"it asks the run for {', '.join(run.asked)}; use what rlcore.protocols.RunView names")


@law(LOGGERS)
def numbers_that_are_none_are_accepted(subject: Subject) -> None:
    """Metrics may be NaN or infinite, whole, tiny or huge: a run that diverges is one whose log is read."""
    for value in (math.nan, math.inf, -math.inf, 0, -0.0, 10**30, 1e-320, 1.8e308):
        with _closing(subject) as (logger, _), _accepting(f"metrics with {value}"):
            logger.metrics(1, {"loss": value, "kl/mean": 0.5})


@law(LOGGERS)
def keys_may_come_and_go(subject: Subject) -> None:
    """Each step has metrics of its own: new keys, fewer keys, no metrics at all, evaluations at the step of another."""
    with _closing(subject) as (logger, run):
        for step, metrics in enumerate(
            (USUAL, {**USUAL, "new/key": 1.0}, {"new/key": 2.0}, {}, {"eval/reward/mean": 1.0}, {"a b/ü@t=0.5": 0.0}), 1
        ):
            run.step = step
            with _accepting(f"the keys {list(metrics)}"):
                logger.metrics(step, dict(metrics))
            with _accepting("an evaluation at the same step"):
                logger.metrics(step, {"eval/loss": 0.5})


@law(LOGGERS)
def completions_of_any_kind_are_accepted(subject: Subject) -> None:
    """Completions may hold any text and scores that nobody gave; their columns may change; there may be none."""
    with _closing(subject) as (logger, _):
        for step, rows in enumerate(
            (ROWS, [], [{"prompt": "a", "output": "b"}], [{**ROWS[0], "sampling": "t=0.5"}], ROWS)
        ):
            with _accepting(f"{len(rows)} completions"):
                logger.completions(step, copy.deepcopy(rows))


@law(LOGGERS)
def what_it_is_given_stays_as_it_was(subject: Subject) -> None:
    """A logger changes neither the metrics nor the rows that it is given: other loggers get the same."""
    metrics, rows = dict(USUAL), [dict(row) for row in ROWS[::2]]
    with _closing(subject) as (logger, run):
        with _accepting("metrics"):
            logger.metrics(1, metrics)
        with _accepting("completions"):
            logger.completions(1, rows)
        require(metrics == USUAL, f"it changes the metrics it is given to {metrics}; copy them first")
        require(rows == list(ROWS[::2]), f"it changes the completions it is given to {rows}; copy them first")
        require(run.config == TrainConfig() and run.step == 0, "it changes the run it is given; only read from it")


@law(LOGGERS)
def it_writes_in_the_runs_folder_only(subject: Subject) -> None:
    """Files go into `run.dir`, and nothing into the working folder."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as elsewhere:
        os.chdir(elsewhere)
        try:
            with _closing(subject) as (logger, run):
                _log_usually(logger, run)
            written = sorted(path.name for path in Path(elsewhere).iterdir())
        finally:
            os.chdir(home)
    require(not written, f"it writes {', '.join(written)} into the working folder; write into run.dir")


@law(LOGGERS)
def it_closes_however_the_run_ended(subject: Subject) -> None:
    """`close` works after a good end, after an error, after an interruption, and where nothing was logged."""
    for error in (None, RuntimeError("made up, of\nseveral lines"), KeyboardInterrupt()):
        for used in (False, True):
            with _opened(subject) as (logger, run):
                if used:
                    _log_usually(logger, run)
                with _accepting(f"close({error!r}) {'after some steps' if used else 'at once'}"):
                    logger.close(error)


@law(LOGGERS)
def it_releases_what_it_holds(subject: Subject) -> None:
    """After `close` no file of the run's folder is open and no thread of the logger's is left, even if it crashed.

    What a library starts once for the whole process, with the first logger, may stay.
    """
    with _closing(subject) as (logger, run):
        _log_usually(logger, run)
    for crash in (False, True):
        threads = set(threading.enumerate())
        with _opened(subject) as (logger, run):
            _spend(logger, run, crash=crash)
            after = " after a crash" if crash else ""
            open_files, left = _open_files(run.dir), _left(threads)
            require(not open_files, f"it leaves {', '.join(open_files)} open{after}; close it in close")
            require(not left, f"it leaves the threads {', '.join(left)} running{after}; end them in close")


@law(LOGGERS)
def a_resumed_run_goes_on_in_its_folder(subject: Subject) -> None:
    """A second logger for the same folder, as a resumed run makes one, loses nothing that the first one wrote."""
    for closed in (True, False):
        with _opened(subject) as (first, run):
            _log_usually(first, run)
            if closed:
                first.close(None)
            before = _sizes(run.dir)
            second = _build(subject, run)
            with _accepting("the second logger"):
                second.metrics(3, dict(USUAL))
                second.close(None)
            after = _sizes(run.dir)
            lost = [name for name, size in before.items() if after.get(name, -1) < size]
            how = "closed" if closed else "left as a killed process leaves it"
            require(
                not lost, f"{', '.join(lost)} is smaller, or gone, once a run whose logger was {how} goes on; append"
            )
            if not closed:
                with _accepting("closing the first logger late"):
                    first.close(None)


class _Poison:
    """Be what raises however it is looked at."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("a crash that the kit made up")

    __float__ = __int__ = __repr__ = __str__ = __format__ = __lt__ = __gt__ = __len__ = __iter__ = _raise


def _build(subject: Subject, run: RunView) -> Any:
    return subject.it.target()(subject.config(), run)


@contextlib.contextmanager
def _opened(subject: Subject) -> Iterator[tuple[Any, StandIn]]:
    """Build the logger for a run whose folder is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rlcore-law-", ignore_cleanup_errors=True) as folder:
        run = StandIn(Path(folder) / "run-1")
        run.dir.mkdir()
        yield _build(subject, run), run


@contextlib.contextmanager
def _closing(subject: Subject) -> Iterator[tuple[Any, StandIn]]:
    """Build the logger, and close it as at the end of a run."""
    with _opened(subject) as (logger, run):
        try:
            yield logger, run
        finally:
            logger.close(None)


@contextlib.contextmanager
def _accepting(what: str) -> Iterator[None]:
    """Say what is raised in the words of a law."""
    try:
        yield
    except Exception as error:
        raise LawBroken(f"{what}: raised {describe_error(error)}; accept it, or the logger is dropped") from error


def _log_usually(logger: Any, run: StandIn) -> None:
    for step in (1, 2):
        run.step = step
        logger.metrics(step, dict(USUAL))
    logger.metrics(2, {"eval/reward/mean": 0.5})
    logger.completions(2, [dict(row) for row in ROWS])


def _spend(logger: Any, run: StandIn, *, crash: bool) -> None:
    """Use a logger behind the fence that a run has, up to its end; it may crash inside, which ends the run too."""
    loggers = Loggers([logger])
    with _not_strict():
        _log_usually(loggers, run)
        if crash:
            poison: Any = _Poison()
            loggers.metrics(3, {"loss": poison})
            loggers.completions(3, [{"prompt": poison, "output": poison}])
        loggers.close(RuntimeError("made up") if crash else None)


@contextlib.contextmanager
def _not_strict() -> Iterator[None]:
    """Leave RLCORE_STRICT_PLUGINS out, under which a logger that raises ends the run."""
    kept = os.environ.pop("RLCORE_STRICT_PLUGINS", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["RLCORE_STRICT_PLUGINS"] = kept


def _open_files(folder: Path) -> list[str]:
    """Name the files under `folder` that this process has open; none where the system does not say."""
    handles = Path("/proc/self/fd")
    found = []
    for handle in handles.iterdir() if handles.is_dir() else ():
        with contextlib.suppress(OSError):
            target = handle.readlink()
            found += [target.name] if target.is_relative_to(folder.resolve()) else []
    return found


def _left(before: set[threading.Thread]) -> list[str]:
    """Name the threads that are more than before, once they had time to end."""
    deadline = time.monotonic() + GRACE_S
    while (more := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(thread.name for thread in more)


def _sizes(folder: Path) -> Mapping[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
