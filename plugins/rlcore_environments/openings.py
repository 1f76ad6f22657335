"""First messages of environments, which are reset when the prompts are read.

Also in this file: rows of a run with an environment: their seeds, what the environment receives, and prompts with
first messages; columns of rows that move over a run: `data.episodes.curriculum`; what adapters to libraries of
environments share: rows that are seeds, and functions of the user.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, ClassVar

import attrs

from rlcore.components import describe_error
from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError, DataError
from rlcore.logging import get_logger
from rlcore.protocols import Environment, EnvironmentTraits, RunView
from rlcore.safe_text import shorten, show
from rlcore.settings import DataConfig
from rlcore.types import Row, is_conversation
from rlcore_environments.answers import BadAnswer, Factory, check_environment, read_messages
from rlcore_environments.calls import Calls, CallTooLate, Pending, allow_more, finished, thread_advice
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import warn_unclosed
from rlcore_environments.options import EpisodeOptions, SeedOptions
from rlcore_environments.process import RemoteError
from rlcore_environments.worker import place_of
from rlcore_transformers.data.tokens import truncated_prompt

SEED = "seed"
"""Column of a row with the seed of its environment; rows without it receive one."""


def own_columns(row: Mapping[str, object], column: str) -> dict[str, Any]:
    """Return what an environment receives of a row."""
    return {name: value for name, value in row.items() if name not in (SEED, column)}


def describe_silence(where: str, name: str, column: str) -> str:
    """Return what is wrong with an environment and a row that both say nothing."""
    return (
        f"{where}: environment '{name}': reset returned no messages, and the row has no '{column}', so the policy has "
        "nothing to answer"
    )


def any_token(tokenizer: Any) -> int:
    """Return a token that stands for a prompt which is not known yet."""
    found = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
    return int(next(token for token in found if token is not None))


def fields_of(row: object, column: str, seed: int, where: str) -> dict[str, Any]:
    """Return a row as a mapping, with the seed of its environment.

    Raises:
        DataError: its own seed is no integer.
    """
    fields = {str(key): value for key, value in row.items()} if isinstance(row, Mapping) else {column: row}
    own = fields.get(SEED)
    if own is not None and (isinstance(own, bool) or not isinstance(own, numbers.Integral)):
        raise DataError(
            f"{where}: the column '{SEED}' is {shorten(own)} ({type(own).__name__}), and it is the seed of the row's "
            "environment, an integer; correct it, or rename the column if it is something else"
        )
    return {**fields, SEED: seed if own is None else int(own)}


def fresh_rows(rows: Sequence[object], options: EpisodeOptions) -> list[bool]:
    """Return for each row to train on whether its environment has another seed in each step.

    Raises:
        ConfigError: `data.episodes.seeds` is `fresh`, and every row states its own seed.
    """
    if options.seeds == "fixed":
        return [False] * len(rows)
    found = [not isinstance(row, Mapping) or row.get(SEED) is None for row in rows]
    if rows and not any(found):
        raise ConfigError(
            f"data.episodes.seeds = 'fresh': has no effect, since every row to train on has a '{SEED}' of its own, "
            "which it keeps; leave that column out of the rows, or leave this option out"
        )
    return found


def fitted(tokens: Sequence[int], dialogue: Dialogue, data: DataConfig, max_length: int, where: str) -> tuple[int, ...]:
    """Return the tokens of a prompt that were computed anew, within the same limits as those of the pipeline."""
    kept = truncated_prompt(list(tokens), dialogue.tokenizer, data, where)
    if max_length and len(kept) >= max_length:
        raise DataError(
            f"{where}: has {len(kept)} tokens, since the environment's message has the text of a control token, which "
            f"is read as text, and the model takes prompts of at most {max_length - 1}; shorten it, or set "
            f"data.max_prompt_tokens to at most {max_length - 1} to truncate prompts"
        )
    return tuple(kept)


def content_of(asked: Any, said: list[dict[str, object]], dialogue: Dialogue, where: str) -> object:
    """Return the prompt of a row followed by the environment's first messages: a conversation, or a text."""
    if dialogue.is_chat:
        before = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked or ())
        return [*before, *said]
    if is_conversation(asked):
        raise ConfigError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it "
            "(model.tokenizer.chat_template)"
        )
    return f"{asked or ''}{''.join(str(each['content']) for each in said)}"


class Openings:
    """Resets an environment for each row, and closes it.

    Args:
        factory: makes the environments.
        options: the section `data.episodes`.
    """

    def __init__(self, factory: Factory, options: EpisodeOptions) -> None:
        self._factory, self._options = factory, options

    @cached_property
    def _calls(self) -> Calls:
        limit = min(self._options.concurrency, self._factory.concurrency or self._options.concurrency)
        return Calls(limit, self._options.timeout_s, in_main=self._options.runs_in_main)

    def of(self, rows: Sequence[Mapping[str, object]], column: str, what: str) -> list[list[dict[str, Any]]]:
        """Return the first messages of each row.

        Args:
            rows: the rows, with the seeds of their environments.
            column: the column of the prompt, which environments do not receive.
            what: the name of the rows, for messages.

        Raises:
            DataError: a reset raises, takes too long, or returns no messages although its row has no prompt.
        """
        pending = list[tuple[Future[Any], Pending]]()
        for row in rows:
            reset = Future[Any]()
            given = {name: value for name, value in row.items() if name != column}
            pending.append((reset, self._calls.start(self._reset, given, reset)))
        found = []
        for i, (row, (reset, call)) in enumerate(zip(rows, pending, strict=True)):
            where = f"{what}[{i}]: environment '{self._factory.name}'"
            try:
                said = read_messages(_result(reset, call), "reset")
            except BadAnswer as error:
                raise DataError(f"{where}: {error}") from error
            except CallTooLate as error:
                raise DataError(f"{where}: reset {error}") from None
            except RemoteError as error:
                raise DataError(
                    f"{where}: reset raised {error}{thread_advice(str(error))}; the row is {shorten(dict(row))}"
                ) from None
            except Exception as error:
                raised = describe_error(error)
                raise DataError(
                    f"{where}: reset raised {raised}{place_of(error)}{thread_advice(raised)}; the row is "
                    f"{shorten(dict(row))}"
                ) from error
            if not said and row.get(column) is None:
                raise DataError(describe_silence(f"{what}[{i}]", self._factory.name, column))
            found.append(said)
        return found

    def _reset(self, row: Row, found: Future[Any]) -> None:
        """Set what the reset returns or raises; then close the environment, for which there is as much time again."""
        environment = check_environment(self._factory.make(), self._factory)
        try:
            given = {name: value for name, value in row.items() if name != SEED}
            found.set_result(finished(environment.reset(given, seed=int(row[SEED]))))
        except BaseException as error:  # noqa: BLE001  raised again where the result is read
            found.set_exception(error)
        allow_more(self._options.timeout_s)
        _close(environment)


def _result(reset: Future[Any], call: Pending) -> object:
    """Return or raise what a reset did; an environment that does not close in time is a warning."""
    try:
        call.result()
    except CallTooLate as error:
        if not reset.done():
            raise
        warn_unclosed(error)
    return reset.result()


def _close(environment: object) -> None:
    """Close an environment, if it has the method; an error is logged, since the messages are known without it."""
    try:
        finished(EnvironmentTraits(environment).close())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  an environment may raise anything
        warn_unclosed(error)


log = get_logger("environments")
OPTION = "data.episodes.curriculum"
SUCCESS, FAILED = "episode/success", "episode/failed"
ROUNDING = 1e-6
"""By how much the mean of equal values may differ from them, in units of `by`."""
KEYS = ("from", "to", "over", "success", "by")
FORMS = "{from: 1, to: 5, over: 100} or {from: 1, to: 5, success: 0.8, by: 1}"
Number = int | float


@attrs.frozen
class Move:
    """How one value moves.

    Attributes:
        name: the column.
        first: its first value.
        last: its last value; whole numbers if both are.
        over: steps after which it is reached; 0 if `success` decides.
        success: share of successful episodes of a round after which the value moves.
        by: by how much, towards `last`.
    """

    name: str
    first: Number
    last: Number
    over: int = 0
    success: float = 0.0
    by: Number = 1

    def value(self, step: int, metrics: Mapping[str, float]) -> Number:
        """Return the value for the next step.

        Args:
            step: steps that are done.
            metrics: the last value of each metric of the run; a success that no episode has stated counts as 0.
        """
        if self.over:
            done = min(step, self.over)
            if isinstance(self.first, int) and isinstance(self.last, int):
                distance = abs(self.last - self.first) * done // self.over
                return self.first + (distance if self.last >= self.first else -distance)
            return self.last if done == self.over else self.first + (self.last - self.first) * (done / self.over)
        before = metrics.get(f"curriculum/{self.name}")
        if before is None:
            return self.first
        moves = math.ceil(abs(before - self.first) / self.by - ROUNDING)
        moves += metrics.get(SUCCESS, 0.0) >= self.success
        way = moves * self.by
        if way >= abs(self.last - self.first):
            return self.last
        return self.first + (way if self.last >= self.first else -way)


class Curriculum:
    """The moving values of a run.

    Args:
        given: the option.

    Raises:
        ConfigError: it has none of the forms.

    Attributes:
        run: the run, once it has begun.
    """

    def __init__(self, given: object) -> None:
        self.run: RunView | None = None
        self._has_warned = False
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{OPTION} = {show(given)}: give a mapping from names of columns to {FORMS}")
        self.moves = [_move(str(name), move) for name, move in (given or {}).items()]

    def _warn(self, moves: Sequence[Move]) -> None:
        self._has_warned = True
        for move in moves:
            log.warning(
                "a value of the curriculum stays at its first one until an episode succeeds, and none has stated in "
                "its info whether it did: set info={'success': ...} in the last Step, or give `over`",
                option=f"{OPTION}.{move.name}", value=move.first,
            )  # fmt: skip

    @property
    def step(self) -> int:
        """Steps of the run that are done."""
        return 0 if self.run is None else self.run.step

    def check_rows(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Check that each moving value reaches a row to train on: those that have the column keep their own.

        Raises:
            ConfigError: one reaches none.
        """
        for move in self.moves:
            if rows and all(row.get(move.name) is not None for row in rows):
                raise ConfigError(
                    f"{OPTION}.{move.name}: has no effect, since every row to train on has a '{move.name}' of its own, "
                    "which it keeps; leave that column out of the rows, or the option of the environment that fills it"
                )

    def values(self, split: str) -> dict[str, Number]:
        """Return the present value of each column; rows of the split `eval` have the last ones.

        If success decides, and no episode has stated it after the first round, a warning names the value that stays.
        """
        if split == "eval":
            return {move.name: move.last for move in self.moves}
        metrics = {} if self.run is None else self.run.metrics
        if not self._has_warned and SUCCESS not in metrics and metrics.get(FAILED, 1.0) < 1:
            self._warn([move for move in self.moves if not move.over])
        return {move.name: move.value(self.step, metrics) for move in self.moves}


def _move(name: str, given: object) -> Move:
    where = f"{OPTION}.{name}"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} = {show(given)}: give {FORMS}")
    if unknown := sorted(set(map(str, given)) - set(KEYS)):
        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(KEYS)}"
        raise ConfigError(f"{where}.{unknown[0]}: no such key; {hint}")
    for key in ("from", "to"):
        if key not in given:
            raise ConfigError(f"{where}: has no `{key}`; give {FORMS}")
        _check(f"{where}.{key}", given[key], "a number", is_fit=True)
    if ("over" in given) == ("success" in given):
        raise ConfigError(f"{where}: give one of `over`, a number of steps, and `success`, a share of the episodes")
    first, last = given["from"], given["to"]
    if "over" in given:
        if "by" in given:
            raise ConfigError(f"{where}.by: has no effect with `over`; leave it out")
        over = given["over"]
        _check(f"{where}.over", over, "a whole number of steps, at least 1", is_fit=isinstance(over, int) and over > 0)
        return Move(name, first, last, over=over)
    success, by = given["success"], given.get("by", 1)
    _check(f"{where}.success", success, "a share above 0, at most 1", is_fit=_is_number(success) and 0 < success <= 1)
    whole = isinstance(first, int) and isinstance(last, int)
    if not whole and "by" not in given:
        raise ConfigError(f"{where}: has no `by`, by which the value moves; give {FORMS}")
    kind = "a whole number above 0, as `from` and `to` are" if whole else "a number above 0"
    _check(f"{where}.by", by, kind, is_fit=_is_number(by) and by > 0 and (not whole or isinstance(by, int)))
    return Move(name, first, last, success=float(success), by=by)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(where: str, value: object, kind: str, *, is_fit: bool) -> None:
    if not _is_number(value) or not is_fit:
        raise ConfigError(f"{where} = {show(value)}: must be {kind}")


WHERE = "data.environment"


class SeedFactory:
    """A factory of episodes that differ by their seeds (`rlcore.protocols.EnvironmentFactory`).

    Args:
        config: the options of the environment, with those of `SeedOptions`.

    Attributes:
        episode: the class of its environments, which receive the factory.
    """

    episode: ClassVar[type[Any]]

    def __init__(self, config: Any) -> None:
        self.config = config

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.config,)

    def make(self) -> Environment:
        """Return the environment of one episode."""
        made: Environment = self.episode(self)
        return made

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split; None if there are none."""
        return [{"seed": seed} for seed in seeds_of(split, self.config)] or None


def seeds_of(split: str, options: SeedOptions) -> range:
    """Return the seeds of a split, one after another: first those of `eval`, then those of `train`."""
    first = options.seed + options.eval_rows
    return range(options.seed, first) if split == "eval" else range(first, first + options.train_rows)


def function_of(given: object, what: str) -> Callable[..., Any] | None:
    """Return a function that is given itself or as `module:function`.

    Args:
        given: the function, its name, or None.
        what: the option, for messages.

    Raises:
        ConfigError: it is none of these.
        DataError: the module or the function does not exist.
    """
    found = load_reference(given, what) if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ConfigError(f"{what} = {given!r:.80}: must be a function, or `module:function`")
    return found


def near_names(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with the names that are spelled like it."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
