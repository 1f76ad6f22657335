"""The most memory that this process has held; light."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int | None:
    """Return the most bytes the process has held on its device so far; None where the system does not say.

    On the CPU that is its resident set, on CUDA what torch's allocator has given out.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if device.type != "cpu":
        return None
    return _status("VmHWM") or _high_water_mark()


def resident_bytes() -> int:
    """Return the bytes of memory the process holds now; 0 where the system does not say."""
    return _status("VmRSS") or 0


def _status(name: str) -> int | None:
    """Read a size from Linux's own account of this process, which begins anew where a program is started."""
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
