"""First messages of environments, which are reset when the prompts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlcore.components import describe_error
from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore_environments.answers import BadAnswer, read_messages
from rlcore_environments.calls import Calls, CallTooLate, finished
from rlcore_environments.factory import Factory, check_environment
from rlcore_environments.options import EpisodeOptions
from rlcore_environments.process import RemoteError
from rlcore_environments.rows import SEED, describe_silence
from rlcore_environments.worker import place_of

log = get_logger("environments")


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
        return Calls(limit, self._options.timeout_s)

    def of(self, rows: Sequence[Mapping[str, Any]], column: str, what: str) -> list[list[dict[str, Any]]]:
        """Return the first messages of each row.

        Args:
            rows: the rows, with the seeds of their environments.
            column: the column of the prompt, which environments do not receive.
            what: the name of the rows, for messages.

        Raises:
            DataError: a reset raises, takes too long, or returns no messages although its row has no prompt.
        """
        pending = [self._calls.start(self._reset, {k: v for k, v in row.items() if k != column}) for row in rows]
        found = []
        for i, (row, call) in enumerate(zip(rows, pending, strict=True)):
            where = f"{what}[{i}]: environment '{self._factory.name}'"
            try:
                said = read_messages(call.result(), "reset")
            except BadAnswer as error:
                raise DataError(f"{where}: {error}") from error
            except CallTooLate as error:
                raise DataError(f"{where}: reset {error}") from None
            except RemoteError as error:
                raise DataError(f"{where}: reset raised {error}") from None
            except Exception as error:
                raise DataError(
                    f"{where}: reset raised {describe_error(error)}{place_of(error)}; the row is {shorten(dict(row))}"
                ) from error
            if not said and row.get(column) is None:
                raise DataError(describe_silence(f"{what}[{i}]", self._factory.name, column))
            found.append(said)
        return found

    def _reset(self, row: Mapping[str, Any]) -> Any:
        environment = check_environment(self._factory.make(), self._factory)
        try:
            return finished(environment.reset({k: v for k, v in row.items() if k != SEED}, seed=int(row[SEED])))
        finally:
            _close(environment)


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
        log.warning("an environment could not be closed", error=describe_error(error))
