"""A console logger for tests, with captured output."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import attrs

from rlcore.components import Dropped
from rlcore.loggers.console import ConsoleConfig, TerminalConsole
from rlcore.plugins.observers import Fence
from rlcore.settings import TrainConfig
from rlcore_report.console import RichConsole

ESCAPE = "\x1b"


@attrs.define
class SomeRun:
    dir: Path
    step: int = 0
    total_steps: int | None = None
    config: TrainConfig = attrs.field(factory=TrainConfig)
    fence: Fence = attrs.field(factory=Fence)
    export_class: str = "AutoModelForCausalLM"
    headline: tuple[str, ...] = ()

    def take_unreported(self) -> list[Dropped]:
        return self.fence.take_unreported()


@attrs.define
class Screen:
    """A console logger, and the text it has printed."""

    logger: RichConsole
    run: SomeRun
    file: io.StringIO

    @property
    def text(self) -> str:
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def make_screen(
    tmp_path: Path, config: ConsoleConfig | None = None, *, terminal: bool = False, width: int = 100, **run: Any
) -> Screen:
    file = io.StringIO()
    console = TerminalConsole(file=file, width=width, force_terminal=terminal, highlight=False)
    some_run = SomeRun(tmp_path, **run)
    return Screen(RichConsole(config or ConsoleConfig(), some_run, console=console), some_run, file)


PPO = {
    "reward/mean": 0.51234, "reward/std": 0.1, "loss/total": 0.031, "loss/policy": -0.0123, "kl/mean": 0.000021,
    "response/length_mean": 7.93, "time/sample_s": 0.7, "time/step_s": 1.3181, "grad/norm": 3.0,
}  # fmt: skip
