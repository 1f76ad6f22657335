"""Peak memory of this process. Light: torch is imported only for a CUDA device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak memory of the process on its device in bytes; None if the system does not report it.

    On the CPU this is the peak resident set size, on CUDA the peak that torch's allocator has handed out.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if device.type != "cpu":
        return None
    return _status("VmHWM") or _high_water_mark()


def resident_bytes() -> int:
    """Return the resident set size of the process in bytes; 0 if the system does not report it."""
    return _status("VmRSS") or 0


def _status(name: str) -> int | None:
    """Read a size from Linux's status file of this process, which `exec` resets."""
    try:
        lines = _STATUS.read_bytes().split(name.encode() + b":", 1)
        return int(lines[1].split(None, 1)[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def _high_water_mark() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
