"""Callbacks of `transformers.Trainer` as observers, for the events that a run of rlcore has too."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlcore.errors import InputsError
from rlcore.logging import get_logger
from rlcore.settings import TrainConfig
from rlcore.training import Run

log = get_logger("callbacks")

EVENTS = (
    "on_init_end", "on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_train_end",
)  # fmt: skip
"""Events of `TrainerCallback` that occur in a run of rlcore."""
LOG_NAMES = {"loss/total": "loss", "lr": "learning_rate", "grad/norm": "grad_norm", "progress/epoch": "epoch"}
"""Metric of rlcore → the name under which callbacks also find it."""
NOTHING = dict.fromkeys(("optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"))
"""Arguments of events for which a run of rlcore has no object."""
FURTHER = {"on_log": ("logs",), "on_evaluate": ("metrics",)}
IGNORED = {
    "should_save": "checkpoint.every", "should_evaluate": "eval.every", "should_log": None, "should_epoch_stop": None,
}  # fmt: skip
"""Requests of `TrainerControl` that have no effect → the option that does the same."""


class CallbackObserver:
    """Calls a callback of `transformers` from the observer hooks of a run.

    Metrics have their names in rlcore and those of `transformers`: `loss`, `learning_rate`, `grad_norm`, `epoch`, and
    `eval_reward/mean` for `eval/reward/mean`. `args.metric_for_best_model` is `checkpoint.metric`. The request
    `control.should_training_stop` ends the run after the current step, with a checkpoint.

    Args:
        callback: the callback; its events that have no match in rlcore are logged once.

    Raises:
        InputsError: a method of it does not take the arguments of its event.
    """

    def __init__(self, callback: TrainerCallback) -> None:
        self.callback = callback
        self._check_signatures()
        self._control = TrainerControl()
        self._noted: set[str] = set()

    def on_run_start(self, run: Run) -> None:
        """Call `on_init_end` and `on_train_begin`."""
        self._log_unmatched()
        self._args, is_main = make_arguments(run), run.ranks.is_main
        self._state = TrainerState(
            global_step=run.step, max_steps=run.total_steps or 0, logging_steps=1, eval_steps=run.config.eval.every,
            save_steps=run.config.checkpoint.every, num_train_epochs=int(run.config.run.epochs or 0),
            is_world_process_zero=is_main, is_local_process_zero=is_main,
        )  # fmt: skip
        self._call("on_init_end", run)
        self._call("on_train_begin", run)

    def on_step(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Call `on_step_end`, then `on_log` with the metrics of the step."""
        self._state.global_step = run.step
        self._state.epoch = metrics.get("progress/epoch", self._state.epoch)
        self._call("on_step_end", run)
        self._log(run, {**metrics, **{theirs: metrics[ours] for ours, theirs in LOG_NAMES.items() if ours in metrics}})

    def on_evaluate(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Call `on_log` and `on_evaluate` with the metrics, then note the best value for `state.best_metric`."""
        named = {**metrics, **{_eval_name(name): value for name, value in metrics.items()}}
        self._log(run, named)
        self._call("on_evaluate", run, metrics=named)
        value, best = named.get(str(self._args.metric_for_best_model)), self._state.best_metric
        if value is not None and (best is None or (value > best if self._args.greater_is_better else value < best)):
            self._state.best_metric, self._state.best_global_step = value, run.step

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """Call `on_save`."""
        if self._state.best_global_step == run.step:
            self._state.best_model_checkpoint = str(path)
        self._call("on_save", run)

    def on_run_end(self, run: Run, error: BaseException | None) -> None:
        """Call `on_train_end`, unless the run failed; `transformers` does the same."""
        if error is None:
            self._call("on_train_end", run)

    def _log(self, run: Run, metrics: Mapping[str, float]) -> None:
        self._state.log_history.append({**metrics, "step": run.step})
        self._call("on_log", run, logs=dict(metrics))

    def _call(self, event: str, run: Run, **given: object) -> None:
        learner = run.models.built
        model = None if learner is None else getattr(learner, "model", learner.module)
        tokenizer = None if learner is None else learner.tokenizer
        given |= {"model": model, "processing_class": tokenizer}
        returned = getattr(self.callback, event)(self._args, self._state, self._control, **NOTHING, **given)
        self._control = self._control if returned is None else returned
        if self._control.should_training_stop:
            run.request_stop(f"{type(self.callback).__name__}.{event} set should_training_stop")
        for request, option in IGNORED.items():
            if getattr(self._control, request) and request not in self._noted:
                self._noted.add(request)
                log.warning(
                    "a callback's request has no effect", callback=type(self.callback).__name__, request=request,
                    use=option or "nothing: every step is logged, and there are no epochs to end",
                )  # fmt: skip

    def _check_signatures(self) -> None:
        for event in EVENTS:
            given = dict.fromkeys(("model", "processing_class", *NOTHING, *FURTHER.get(event, ())))
            try:
                inspect.signature(getattr(self.callback, event)).bind(None, None, None, **given)
            except TypeError as error:
                raise InputsError(
                    f"observers: {type(self.callback).__name__}.{event} does not take the arguments of its event "
                    f"({error}); define it as {event}(self, args, state, control, **kwargs)"
                ) from None

    def _log_unmatched(self) -> None:
        unmatched = [
            event
            for event in dir(TrainerCallback)
            if event.startswith("on_")
            and event not in EVENTS
            and getattr(type(self.callback), event) is not getattr(TrainerCallback, event)
        ]
        if unmatched:
            name = type(self.callback).__name__
            log.warning("events of a callback do not occur in rlcore", callback=name, events=", ".join(unmatched))


def make_arguments(run: Run) -> TrainingArguments:
    """Return the options of a run under the names that callbacks read."""
    config: TrainConfig = run.config
    steps = {"eval": config.eval.every, "save": config.checkpoint.every}
    strategies: dict[str, Any] = {}
    for name, every in steps.items():
        strategies |= {f"{name}_strategy": "steps", f"{name}_steps": every} if every else {f"{name}_strategy": "no"}
    return TrainingArguments(
        output_dir=str(run.dir), max_steps=run.total_steps or -1, logging_steps=1, report_to=[], disable_tqdm=False,
        seed=config.run.seed, metric_for_best_model=_eval_name(str(config.checkpoint.metric)),
        greater_is_better=config.checkpoint.mode == "max", run_name=run.dir.name,
        use_cpu=run.ranks.device.type == "cpu",
        accelerator_config={"use_configured_state": True},  # otherwise the run's own state would be reset
        **strategies,
    )  # fmt: skip


def _eval_name(metric: str) -> str:
    return "eval_" + metric.removeprefix("eval/")
