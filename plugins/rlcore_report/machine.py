"""Where a run was trained: written to its folder after its first step, and read for the card of its report."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.safe_text import visible

if TYPE_CHECKING:
    from rlcore.protocols import RunView

FILE = "report/machine.json"


def record_machine(run: RunView) -> None:
    """Write the device of the run's main process and the number of processes; a full disk is no error here."""
    device = run.ranks.device
    name = str(device.type)
    if name == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    file = run.dir / FILE
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"device": name, "processes": run.ranks.world}) + "\n", encoding="utf-8")


def device_of(folder: Path) -> str:
    """Return the device and the number of processes of a run in words; empty if they are unknown."""
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        count = found.get("processes", 1)
        return visible(found.get("device", "")) + (f", {visible(count)} processes" if count != 1 else "")
    return ""
