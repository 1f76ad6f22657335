"""Send metrics and completions to every logger, and let none of them disturb the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.components import describe_error
from rlcore.errors import PluginError
from rlcore.log import get_logger
from rlcore.switches import is_on

if TYPE_CHECKING:
    from rlcore.protocols import Logger
    from rlcore.settings import TrainConfig

log = get_logger("rlcore.loggers")


class LoggedRun(Protocol):
    """What the loggers of the core use of a run."""

    @property
    def dir(self) -> Path:
        """The run's folder."""
        ...

    @property
    def step(self) -> int:
        """Steps done so far."""
        ...

    @property
    def total_steps(self) -> int | None:
        """Steps after which the run ends, where that is known."""
        ...

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        ...


class Loggers(list["Logger"]):
    """Be all loggers of a run at once; one that raises is logged, closed, and not called again.

    Raises:
        PluginError: from every method, where RLCORE_STRICT_PLUGINS is set and a logger raises.
    """

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation."""
        self._tell("metrics", step, dict(metrics))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send evaluation samples."""
        self._tell("completions", step, rows)

    def close(self, error: BaseException | None) -> None:
        """Have each logger finish, whatever the others do."""
        try:
            self._tell("close", error)
        finally:
            self.clear()

    def _tell(self, method: str, *arguments: Any) -> None:
        for logger in list(self):
            try:
                getattr(logger, method)(*arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: a logger may raise anything
                self._drop(logger, method, error)

    def _drop(self, logger: Logger, method: str, error: BaseException) -> None:
        name = f"{type(logger).__module__}:{type(logger).__qualname__}"
        if is_on(os.environ, "RLCORE_STRICT_PLUGINS"):
            raise PluginError(f"logger {name}: {method} raised {describe_error(error)}") from error
        log.error("logger dropped for the rest of the run", dropped=name, during=method, error=describe_error(error))
        self[:] = [other for other in self if other is not logger]
        if method != "close":
            try:
                logger.close(error)
            except (Exception, SystemExit) as again:  # noqa: BLE001  # the same fence, on the way out
                log.debug("the dropped logger could not be closed either", dropped=name, error=describe_error(again))
