"""Describe the machine a run would have, from sources that answer at once; torch is asked in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIB = 2**30
SMI_TIMEOUT_S = 5.0
TORCH_TIMEOUT_S = 60.0
_SMI = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_ASK_TORCH = """
import json, torch
from torch import cuda
mps = torch.backends.mps.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "threads": torch.get_num_threads(),
    "devices": [cuda.get_device_name(i) for i in range(cuda.device_count())] + ["mps"] * mps,
}))
"""


def system() -> dict[str, Any]:
    """Name operating system, processor and Python, and nothing that tells whose they are."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> dict[str, Any]:
    """Count the processor cores there are, those this process may run on, and the share a container is given.

    Returns:
        `present`, `allowed`, and `quota` in cores, None where nothing bounds it.
    """
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    quota = None
    try:
        share, period = cgroup.read_text().split()
        quota = int(share) / int(period)
    except (OSError, ValueError):  # no Linux container, or "max"
        pass
    return {"present": present, "allowed": allowed, "quota": quota}


def memory() -> dict[str, int] | None:
    """Return `total` and `free` bytes of memory as Linux tells them, None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
        return {"total": sizes["MemTotal"], "free": sizes["MemAvailable"]}
    except (OSError, ValueError, KeyError):
        return None


def accelerators() -> dict[str, Any]:
    """Find accelerators without torch: what `nvidia-smi` lists, AMD's device file, Apple's processor.

    Returns:
        `seen`, a line for each, and `source`, where that comes from or why nothing is known.
    """
    if shutil.which("nvidia-smi"):
        answer = _ask(["nvidia-smi", *_SMI], SMI_TIMEOUT_S)
        if isinstance(answer, str):
            return {"seen": [line.strip() for line in answer.splitlines() if line.strip()], "source": "nvidia-smi"}
        return {"seen": [], "source": f"nvidia-smi {answer['failed']}"}
    if Path("/dev/kfd").exists():
        return {"seen": ["AMD, driver loaded"], "source": "/dev/kfd"}
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return {"seen": ["Apple silicon"], "source": "platform"}
    return {"seen": [], "source": "no nvidia-smi, no /dev/kfd"}


def ask_torch(timeout_s: float = TORCH_TIMEOUT_S) -> dict[str, Any]:
    """Import torch in another process and return its version, threads and devices, or `failed` with the reason."""
    # -P: the working folder may hold a torch.py of its own.
    answer = _ask([sys.executable, "-P", "-c", _ASK_TORCH], timeout_s)
    if not isinstance(answer, str):
        return answer
    try:
        found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": f"printed no answer: {answer[-200:]!r}"}
    return found


def _ask(command: list[str], timeout_s: float) -> str | dict[str, str]:
    """Return what a command printed, or `failed` with one line that says why it did not answer."""
    try:
        done = subprocess.run(  # noqa: S603  # the commands are the two above
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"did not answer in {timeout_s:g} s"}
    except OSError as error:
        return {"failed": f"could not be started: {error}"}
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return {"failed": f"exited with {done.returncode}" + (f": {said[-1]}" if said else "")}
    return done.stdout


def disk(folder: Path) -> dict[str, Any]:
    """Tell whether files can be made in `folder`, or the nearest folder above it that exists, and what is free there.

    Returns:
        `writable`, `free` in bytes (None where unknown), and `error`, empty where files can be made.
    """
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = None
    try:
        free = shutil.disk_usage(place).free
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"rlcore")
            file.flush()
    except OSError as error:
        return {"writable": False, "free": free, "error": error.strerror or str(error)}
    return {"writable": True, "free": free, "error": ""}


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder where models and data sets from the hub are kept, as `huggingface_hub` chooses it."""
    if "HF_HUB_CACHE" in environ:
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    home = environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    return Path(home).expanduser() / "hub"
