"""First messages of environments, which are reset when the prompts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from rlcore.components import describe_error
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_environments.answers import BadAnswer, read_messages
from rlcore_environments.attempt import warn_unclosed
from rlcore_environments.calls import Calls, CallTooLate, Pending, allow_more, finished, thread_advice
from rlcore_environments.factory import Factory, check_environment
from rlcore_environments.options import EpisodeOptions
from rlcore_environments.process import RemoteError
from rlcore_environments.rows import SEED, describe_silence
from rlcore_environments.worker import place_of


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

    def of(self, rows: Sequence[Mapping[str, Any]], column: str, what: str) -> list[list[dict[str, Any]]]:
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

    def _reset(self, row: Mapping[str, Any], found: Future[Any]) -> None:
        """Set what the reset returns or raises; then close the environment, for which there is as much time again."""
        environment = check_environment(self._factory.make(), self._factory)
        try:
            given = {name: value for name, value in row.items() if name != SEED}
            found.set_result(finished(environment.reset(given, seed=int(row[SEED]))))
        except BaseException as error:  # noqa: BLE001  raised again where the result is read
            found.set_exception(error)
        allow_more(self._options.timeout_s)
        _close(environment)


def _result(reset: Future[Any], call: Pending) -> Any:
    """Return or raise what a reset did; an environment that does not close in time is a warning."""
    try:
        call.result()
    except CallTooLate as error:
        if not reset.done():
            raise
        warn_unclosed(error)
    return reset.result()


def _close(environment: Any) -> None:
    """Close an environment, if it has the method; an error is logged, since the messages are known without it."""
    close = getattr(environment, "close", None)
    if not callable(close):
        return
    try:
        finished(close())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  an environment may raise anything
        warn_unclosed(error)
