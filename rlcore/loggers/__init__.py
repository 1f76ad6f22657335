"""Loggers: send metrics and completions to every logger of a run; a logger that raises is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore.loggers.conversations import display_row
from rlcore.logging import get_logger
from rlcore.plugins.switches import Fence
from rlcore.profiling import phase

if TYPE_CHECKING:
    from rlcore.protocols import Logger

__all__ = ["Loggers", "display_row", "log"]
log = get_logger("rlcore.loggers")


class Loggers(list["Logger"]):
    """All loggers of a run; an error of a logger is logged, and the logger is closed and not called again.

    Args:
        loggers: the initial loggers.
        fence: records which loggers were dropped.

    Raises:
        PluginError: by every method, if RLCORE_STRICT_PLUGINS is set and a logger raises.
    """

    def __init__(self, loggers: Iterable[Logger] = (), *, fence: Fence | None = None) -> None:
        super().__init__(loggers)
        self._fence = fence or Fence()
        self._names: dict[int, str] = {}
        self._step = 0

    def add(self, logger: Logger, name: str) -> None:
        """Add a logger; `name` is its name in messages."""
        self.append(logger)
        self._names[id(logger)] = name

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation to every logger."""
        self._step = step
        self._call("metrics", step, dict(metrics))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send evaluation samples to every logger."""
        self._step = step
        self._call("completions", step, rows)

    def close(self, error: BaseException | None) -> None:
        """Close every logger, even if another one raises."""
        try:
            self._call("close", error)
        finally:
            self.clear()

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in list(self):
            try:
                with phase("log"), phase(self._name(logger)):
                    getattr(logger, method)(*arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin's logger may raise anything
                self._drop(logger, method, error)

    def _name(self, logger: Logger) -> str:
        return self._names.get(id(logger)) or f"{type(logger).__module__}:{type(logger).__qualname__}"

    def _drop(self, logger: Logger, method: str, error: BaseException) -> None:
        name = self._name(logger)
        self._fence.drop(name, method, self._step, error, event="logger dropped for the rest of the run")
        self[:] = [other for other in self if other is not logger]
        if method != "close":
            try:
                logger.close(error)
            except (Exception, SystemExit) as again:  # noqa: BLE001  # as above
                log.debug("the dropped logger could not be closed either", dropped=name, error=describe_error(again))
