"""Drive any trainer: at each yield log, evaluate, write a checkpoint, call the observers, and stop when due.

Also in this file: Ctrl-C and SIGTERM stop a run after its current step.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from rlcore.checkpoints.run_folder import RunDir
from rlcore.components import describe_error
from rlcore.errors import CheckpointError, Diverged, PluginError, RLCoreError
from rlcore.logging import get_logger
from rlcore.profiling import StepTokens, background, begin_step, counting, end_steps, peak_bytes, phase
from rlcore.protocols import Trainer
from rlcore.ranks import Ranks
from rlcore.safe_text import hide_logins
from rlcore.training.evaluate import evaluate
from rlcore.training.resume import Saver
from rlcore.training.run import Run
from rlcore.types import Metrics

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_S = 1.0
"""torchrun forwards Ctrl-C to processes that have received it from the terminal already: one press, two signals."""


class StopRequest:
    """Sets `requested` and `name` at the first SIGINT or SIGTERM, and raises KeyboardInterrupt at the second.

    Handlers are installed within the `with` block, and only in the main thread (Python allows no other). A signal that
    was ignored before stays ignored.

    Args:
        step: number of the step in progress or, between steps, of the last one, for the message; the loop counts it up.
    """

    def __init__(self, step: int = 0) -> None:
        self.requested, self.name = False, ""
        self.step = step
        self._signalled_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Request the stop without a signal."""
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                previous = signal.getsignal(number)
                if previous is not None and previous is not signal.SIG_IGN:
                    self._previous[number] = previous
                    signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        self.name = name
        if self._signalled_at is None:
            self.requested, self._signalled_at = True, now
            doing = f"finishing step {self.step}" if self.step else "finishing the evaluation before step 1"
            _print(f"{name}: {doing}, then saving; press again to stop at once")
        elif "TORCHELASTIC_RUN_ID" not in os.environ or now - self._signalled_at > ECHO_S:
            self._restore()
            _print(f"{name} again: stopping at once")
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous)


def _print(line: str) -> None:
    """Write to file descriptor 2 directly: a signal handler may interrupt a write to sys.stderr."""
    if os.environ.get("RANK", "0") in {"", "0"}:
        try:
            os.write(2, f"\n{line}\n".encode())
        except OSError:
            return


log = get_logger("loop")
_OVER: Any = object()  # marks the end of the trainer's steps
LARGE = 1e19
"""Rewards of this size and above cannot be squared in float32, as whitening and the value loss do."""


def fit(trainer: Trainer, run: Run, saver: Saver, *, after_step: Callable[[], None] = lambda: None) -> Metrics:
    """Run `trainer` until a budget is spent or a stop is requested; return the last value of every metric.

    The loop assumes only that a yield is a promise (`rlcore.protocols.Trainer.steps`). All ranks reach each yield
    together; decisions that depend on a clock or a signal are made once for all ranks. `after_step` is
    called after each step, before its evaluation.
    """
    config = run.config
    with _ending(run), run.ranks.translated(), StopRequest(run.step) as stop:
        run.progress.signalled = lambda: stop.requested
        run.ranks.watchdog.when_alone(stop.request)  # the launcher of this process may die
        run.observers.on_run_start(run)
        if config.eval.at_start and run.step == 0:
            _evaluate(trainer, run, saver)
        steps: object = trainer.steps()
        if not isinstance(steps, Iterator):
            raise PluginError(
                f"trainer '{config.trainer.get('name')}': steps() returned {type(steps).__name__}; it must be a "
                "generator, which yields the metrics of each step"
            )
        over = _is_over(run)
        while not (over or (stopped := run.ranks.any(stop.requested or bool(run.progress.stop_reason)))):
            begin_step(run.step)
            stop.step = run.step + 1
            with background("driver"):
                over = not _step(trainer, steps, run, saver) or _is_over(run)
            after_step()
            evaluated = _due(run, config.eval.every)
            if evaluated:
                _evaluate(trainer, run, saver)
            # The checkpoint of the last step is written after the last evaluation, which may rank it.
            if not over and (_due(run, config.checkpoint.every) or (evaluated and config.checkpoint.keep_best)):
                _checkpoint(trainer, run, saver)
        end_steps(run.step)
        if over and config.eval.at_end and saver.evaluated_at != run.step:
            _evaluate(trainer, run, saver)
        if (config.checkpoint.at_end or _due(run, config.checkpoint.every)) and saver.saved_at != run.step:
            run.observers.on_checkpoint(run, saver.checkpoint(trainer))
        saver.final(trainer)
        run.progress.metrics |= _peak_memory(run)
        received = run.ranks.any(stop.requested)
        run.progress.signal = stop.name
        run.progress.was_interrupted, run.progress.signalled = received and not over, lambda: received
        if not over and stopped:
            log.info(
                "stopped on request", step=run.step, run=str(run.dir), continue_with=RunDir(run.dir).continuation(),
                **({"reason": run.progress.stop_reason} if run.progress.stop_reason else {}),
            )  # fmt: skip
    return run.metrics


def _step(trainer: Trainer, steps: Iterator[Metrics], run: Run, saver: Saver) -> bool:
    """Advance the trainer to its next yield, with the random generators as they were at its last one.

    Returns:
        False if the trainer has no more steps.

    Raises:
        PluginError: the trainer yielded no dict.
        Diverged: a loss is not finite; earlier checkpoints are unchanged.
    """
    begun, skipped = time.perf_counter(), _num_skipped(run)
    run.ranks.note(f"step {run.step + 1}")
    saver.restore_random_state()
    context = nullcontext() if run.models.built is None else run.models.built.training_step()
    with background("trainer"), counting() as tokens, context:
        metrics: object = next(steps, _OVER)
    saver.note_random_state()
    if metrics is _OVER:
        return False
    if not isinstance(metrics, dict):
        raise PluginError(
            f"trainer '{run.config.trainer.get('name')}': steps() yielded {metrics!r:.80} at step {run.step + 1}; "
            "yield a dict of metrics, which may be empty"
        )
    run.progress.step += 1
    metrics["time/step_s"] = time.perf_counter() - begun
    for order in run.data.orders:
        metrics |= order.metrics()
    if run.updaters:
        metrics["grad/skipped"] = float(_num_skipped(run) - skipped)
    metrics |= _peak_memory(run) | _tokens_per_second(tokens, metrics["time/step_s"], run.ranks)
    run.progress.metrics |= metrics
    run.loggers.metrics(run.step, metrics)
    with phase("log"):
        run.sampling.rollouts.write(run.step)
    with _saving(trainer, run, saver):
        run.observers.on_step(run, metrics)
    broken = [name for name, value in metrics.items() if name.startswith("loss/") and not math.isfinite(value)]
    if broken:
        raise Diverged(
            f"step {run.step}: {broken[0]} = {metrics[broken[0]]}: training has diverged, and this step is not saved; "
            f"{_remedy(metrics)}"
        )
    return True


def _num_skipped(run: Run) -> int:
    """Return the number of optimizer steps that have been skipped or left out."""
    return sum(updater.num_skipped for updater in run.updaters)


def _remedy(metrics: Metrics) -> str:
    """Return what to do about a loss that is not finite."""
    large = [name for name in metrics if name.startswith("reward/") and abs(metrics[name]) >= LARGE]
    if large:
        return (
            f"{large[0]} = {metrics[large[0]]:g} is so large that its square exceeds the range of float32: scale the "
            "rewards down, for example with the weight of the reward function"
        )
    return "resume from an earlier checkpoint with a lower trainer.optimizer.lr or trainer.optimizer.max_grad_norm"


def _peak_memory(run: Run) -> Metrics:
    """Return the peak memory so far of the process with the highest peak."""
    peak = peak_bytes(run.ranks.device)
    return {} if peak is None else {"perf/peak_memory_gb": max(run.ranks.gather([peak])) / 1e9}


def _tokens_per_second(tokens: StepTokens, seconds: float, ranks: Ranks) -> Metrics:
    """Return `perf/tokens_per_s` of a step over all processes; nothing if the step had no tokens."""
    sampled, learned = ranks.sum(torch.tensor(tokens.counts(), dtype=torch.float64)).tolist()
    num_tokens = sampled or learned
    return {"perf/tokens_per_s": num_tokens / seconds} if num_tokens else {}


def _due(run: Run, every: int) -> bool:
    return every > 0 and run.step % every == 0


def _is_over(run: Run) -> bool:
    if run.total_steps is not None and run.step >= run.total_steps:
        return True
    bound = run.config.run.time_s
    return bound is not None and bool(run.ranks.broadcast(run.progress.elapsed_s >= bound))


def _evaluate(trainer: Trainer, run: Run, saver: Saver) -> None:
    """Evaluate; if that fails, as a user's metric function may, write a checkpoint before the run ends."""
    begun = time.perf_counter()
    run.ranks.note(f"the evaluation after step {run.step}")
    with _saving(trainer, run, saver):
        with run.sampling.rollouts.paused(), phase("evaluate"):
            metrics, rows = evaluate(run)
        if not metrics:  # there is nothing to evaluate on
            return
        metrics["eval/time_s"] = time.perf_counter() - begun
        run.progress.metrics |= metrics
        run.loggers.metrics(run.step, metrics)
        run.loggers.completions(run.step, rows)
        run.observers.on_evaluate(run, metrics)
        saver.note_evaluation(metrics)


@contextmanager
def _saving(trainer: Trainer, run: Run, saver: Saver) -> Iterator[None]:
    """If an error of the block ends the run between two steps, write a checkpoint before."""
    try:
        yield
    except RLCoreError:
        # With several processes, those that did not fail would not take part in the checkpoint.
        if run.ranks.world == 1 and saver.saved_at != run.step:
            _checkpoint(trainer, run, saver)
        raise


def _checkpoint(trainer: Trainer, run: Run, saver: Saver) -> None:
    """Write a checkpoint during a run; if it cannot be written, log the reason and continue."""
    try:
        path = saver.checkpoint(trainer)
    except CheckpointError as error:
        log.warning("checkpoint not written; the run continues", step=run.step, reason=str(error))
    else:
        run.observers.on_checkpoint(run, path)


@contextmanager
def _ending(run: Run) -> Iterator[None]:
    """However the block ends, call `on_run_end`, close components, call `on_run_closed` and log what was dropped."""
    error: BaseException | None = None
    if run.ranks.is_main:
        RunDir(run.dir).end.unlink(missing_ok=True)  # that of the process before, in a run that goes on
    try:
        yield
    except BaseException as caught:
        error = caught
        run.ranks.note_failure(caught)
        raise
    finally:
        run.ranks.note("")
        try:
            run.observers.on_run_end(run, error)
        except BaseException as caught:
            error = error or caught
            raise
        finally:
            try:
                run.closing.held.close()
            finally:
                if run.ranks.is_main:
                    RunDir(run.dir).write_end(run.step, *_how_ended(run, error))
                run.loggers.close(error)
                run.observers.on_run_closed(run, error)
            if left := run.take_unreported():
                write = log.warning if run.ranks.is_main else log.error  # other ranks log errors only
                write("plugins were dropped in this run", dropped=[str(each) for each in left], run=str(run.dir))


def _how_ended(run: Run, error: BaseException | None) -> tuple[str, str]:
    """Return how a run ended in a word, and why."""
    progress = run.progress
    if error is not None and not isinstance(error, KeyboardInterrupt):
        return "failed", hide_logins(describe_error(error))
    if error is not None or progress.was_interrupted:
        return "interrupted", progress.signal or "SIGINT"
    if run.total_steps is not None and run.step >= run.total_steps:
        return "finished", f"all {run.total_steps} steps"
    if progress.stop_reason:
        return "stopped", progress.stop_reason
    bound = run.config.run.time_s
    is_timed = bound is not None and progress.elapsed_s >= bound
    return "finished", f"run.time_s = {bound:g} is spent" if is_timed else "the trainer has no more steps"
