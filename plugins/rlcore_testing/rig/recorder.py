"""Recording of what a trainer learns from and what becomes of its policy, to compare it with an oracle.

Also in this file: other valid values of an option, chosen by its type and range.
"""

from __future__ import annotations

import copy
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel

from rlcore.config import structure, unstructure
from rlcore.config.options import arms, fields, section_class
from rlcore.errors import ConfigError
from rlcore.hookspecs import hookimpl
from rlcore.optim import Updater
from rlcore.training import Round
from rlcore.training.run import Run
from rlcore.types import Sample, Trajectories, sequences_of
from rlcore_testing.recorded import Recorded, Response
from rlcore_testing.rig.gradient_noise import double_precision
from rlcore_testing.rig.runs import Tiny, options_of, run
from rlcore_testing.rig.watch import Watch
from rlcore_testing.small import make_tokenizer, toy_reward

Key = tuple[tuple[int, ...], tuple[bool, ...]]
"""Tokens of a sequence, and which of them were chosen."""


class RecordingWatch(Watch):
    """A watch that records a run.

    Attributes:
        recorded: the inputs of an oracle.
        prefix: of the names of the model's weights among those of the policy.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorded = Recorded({}, {}, (), (), [], [], [], nn.Module(), nn.Module(), {})
        self.prefix = ""
        self._given: list[Key] = []

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Return the metrics of each step."""
        return self.arguments_of("on_step")

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the policy's weights by name."""
        return {name: weight.detach() for name, weight in self.trainer.policy().module.named_parameters()}

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Copy the model, and keep the data and the options of sampling."""
        super().on_run_start(run)
        found, module = self.recorded, self.trainer.policy().module
        named = ((name, part) for name, part in module.named_modules() if isinstance(part, PreTrainedModel))
        name, model = next(named, ("", module))
        self.prefix = f"{name}." if name else ""
        found.model, found.reference = _plain(model), _plain(model).requires_grad_(False)
        own = {id(weight) for weight in model.parameters()}
        found.heads = {
            name: weight.detach().clone().requires_grad_(weight.requires_grad)
            for name, weight in module.named_parameters()
            if id(weight) not in own
        }
        needs, found.gen = self.trainer.needs, unstructure(run.config.gen)
        found.samples = list(run.samples) if "samples" in needs else []
        found.rewards = [each.total for each in run.data.sample_rewards] if "rewards" in needs else []

    @hookimpl
    def on_rollout(self, batch: Trajectories) -> None:
        """Keep the responses of a round."""
        super().on_rollout(batch)
        ended = batch.ended.tolist()
        responses = [Response(*key, is_whole, _score(key)) for key, is_whole in zip(_keys(batch), ended, strict=True)]
        self.recorded.rounds.append(responses)

    @hookimpl
    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Keep the metrics, and the number of optimizer steps made."""
        super().on_step(metrics)
        self.recorded.ends.append(len(self.recorded.steps))

    def give(self, batch: Trajectories) -> None:
        """Note that the next optimizer step learns from a batch."""
        self._given += _keys(batch)

    def close_step(self, *, is_made: bool) -> None:
        """Note that an optimizer step was made or left out."""
        if is_made:
            self.recorded.steps.append(self._rows(self._given))
        self._given.clear()

    def _rows(self, keys: Sequence[Key]) -> list[Any]:
        """Return the rows of a batch's sequences: those of the data, or of the newest round that has them.

        If no row has the sequences with the same chosen tokens, it is one with the same tokens. Of equal responses of a
        round, each is returned in turn.
        """
        found: list[object] = []
        used: Counter[Key] = Counter()
        places: list[Sequence[object]] = [self.recorded.samples, *reversed(self.recorded.rounds)]
        while keys:
            exact = ([row for row in rows if _begins(keys, _keys_of(row))] for rows in places)
            alike = ([row for row in rows if _begins(_tokens(keys), _tokens(_keys_of(row)))] for rows in places)
            same = next(filter(None, exact), None) or next(filter(None, alike), [])
            found += same[used[keys[0]] : used[keys[0]] + 1] or same[-1:]
            used[keys[0]] += 1
            keys = keys[len(_keys_of(found[-1])) if same else 1 :]
        return found


def record(tiny: Tiny) -> RecordingWatch:
    """Execute the run that `tiny` describes in float64, and record it."""
    made: list[RecordingWatch] = []

    def make(*arguments: object) -> RecordingWatch:
        made.append(RecordingWatch(*arguments))
        return made[0]

    with double_precision(), _observed_steps(made):
        run(tiny, make)
    made[0].recorded.options = unstructure(options_of(tiny))
    return made[0]


def outcome(description: Mapping[str, Any]) -> dict[str, Any]:
    """Record the run that another process describes; return its weights and metrics as plain values."""
    recorder = record(Tiny(**description))
    weights = {name: weight.tolist() for name, weight in recorder.weights.items()}
    return {"weights": weights, "metrics": recorder.metrics}


@contextmanager
def _observed_steps(recorders: Sequence[RecordingWatch]) -> Iterator[None]:
    """Record in the first of `recorders` what each optimizer step in the block learns from."""
    accumulate, skip = Updater.accumulate, Updater.skip

    def observed(updater: Updater, batch: Trajectories | Round, *arguments: Any, **options: Any) -> Any:
        recorders[0].give(batch.own if isinstance(batch, Round) else batch)
        return accumulate(updater, batch, *arguments, **options)

    def skipped(updater: Updater) -> None:
        recorders[0].close_step(is_made=False)
        skip(updater)

    handle = register_optimizer_step_post_hook(lambda *_: recorders[0].close_step(is_made=True))
    setattr(Updater, "accumulate", observed)  # noqa: B010  type checkers reject assignment to a method
    setattr(Updater, "skip", skipped)  # noqa: B010  the same
    try:
        yield
    finally:
        setattr(Updater, "accumulate", accumulate)  # noqa: B010  the same
        setattr(Updater, "skip", skip)  # noqa: B010  the same
        handle.remove()


def _plain(model: nn.Module) -> nn.Module:
    """Return a model as its class makes it, without the changes of the run, with the same weights."""
    if not isinstance(model, PreTrainedModel):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        made: nn.Module = type(model)(copy.deepcopy(model.config))
    made.to(torch.float64).eval()
    made.load_state_dict(model.state_dict())
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in made.named_parameters():
        weight.requires_grad_(name in trained)
    return made


def _keys(batch: Trajectories) -> list[Key]:
    return [
        (tuple(tokens[real].tolist()), tuple(chosen[real].tolist()))
        for tokens, chosen, real in zip(batch.tokens, batch.action_mask, batch.mask, strict=True)
    ]


def _keys_of(row: object) -> list[Key]:
    sequences: Sequence[Response | Sample] = [row] if isinstance(row, Response) else sequences_of(row)
    return [(tuple(each.tokens), tuple(map(bool, each.action_mask))) for each in sequences]


def _tokens(keys: Sequence[Key]) -> list[tuple[int, ...]]:
    return [tokens for tokens, _ in keys]


def _begins(sequences: Sequence[object], own: Sequence[object]) -> bool:
    """Return whether `sequences` begin with `own`, which are not none."""
    return bool(own) and list(sequences[: len(own)]) == list(own)


def _score(key: Key) -> float:
    chosen = [token for token, own in zip(*key, strict=True) if own]
    text = str(make_tokenizer().decode(chosen, skip_special_tokens=True))
    return toy_reward([text])[0]


MOST = 3
"""Values of an option that are tried."""


def numeric_options(config: object, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the dotted path, type and value of every option that is a number, a choice or a pair of numbers."""
    cls: object = type(config)
    for name, (field, tp) in fields(cls).items():
        value = getattr(config, field.name)
        if section_class(tp) is not None and value is not None:
            yield from numeric_options(value, f"{prefix}{name}.")
        elif any(True for _ in _candidates(tp, value)):
            yield f"{prefix}{name}", tp, value


def other_values(cls: type, options: Mapping[str, object], path: str, tp: object, value: object) -> list[object]:
    """Return up to MOST other values of the option at `path`, each of which the options class accepts."""
    found: list[object] = []
    for candidate in _candidates(tp, value):
        if candidate != value and candidate not in found and _is_valid(cls, options, path, candidate):
            found.append(candidate)
    return found[:MOST]


def with_option(options: Mapping[str, object], path: str, value: object) -> dict[str, Any]:
    """Return options with the value at a dotted path replaced."""
    first, _, rest = path.partition(".")
    inner = options.get(first)
    below = with_option(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return {**options, first: below}


def _is_valid(cls: type, options: Mapping[str, object], path: str, value: object) -> bool:
    try:
        structure(cls, with_option(options, path, value), where="options")
    except ConfigError:
        return False
    return True


def _candidates(tp: object, value: Any) -> Iterator[object]:
    for arm in arms(tp):
        if typing.get_origin(arm) is Literal:
            yield from typing.get_args(arm)
        elif arm is bool:
            yield from (False, True)
        elif arm is int:
            yield from (2 * value, value - 1, value + 1) if isinstance(value, int) and value else (1, 100, 8)
        elif arm is float:
            yield from (
                (value / 2, 1e-6, 1.000001, 2 * value) if value and not isinstance(value, str) else (0.5, 0.01, 1.5)
            )
        elif typing.get_origin(arm) is tuple and set(typing.get_args(arm)) == {float}:
            yield [each / 2 for each in value] if value else [0.5] * len(typing.get_args(arm))
