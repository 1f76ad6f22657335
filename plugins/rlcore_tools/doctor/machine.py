"""Facts about the machine: cores, memory, accelerators, disks; torch is imported only in a separate process.

Also in this file: packages that a dist requires, with their installed versions, from metadata; nothing is imported.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from rlcore.child import run
from rlcore.plugins.metadata import installed_dist

GIB = 2**30
SMI_TIMEOUT_S = 5.0
TORCH_TIMEOUT_S = 60.0
_SMI = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_TORCH_DEVICES = """
import json, torch
from torch import cuda
mps = torch.backends.mps.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "threads": torch.get_num_threads(),
    "devices": [cuda.get_device_name(i) for i in range(cuda.device_count())]
    + ["mps (not used: it has no float64)"] * mps,
}))
"""


def system() -> dict[str, Any]:
    """Return operating system, processor and Python version, without host or user names."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> dict[str, Any]:
    """Count the processor cores.

    Returns:
        `present` in the machine, `allowed` by the process's affinity, and `quota`: the container's CPU limit in cores,
        None if there is none.
    """
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    quota = None
    try:
        share, period = cgroup.read_text().split()
        quota = int(share) / int(period)
    except (OSError, ValueError):  # not a Linux container, or "max"
        pass
    return {"present": present, "allowed": allowed, "quota": quota}


def bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's instructions for matrix products in bfloat16; none on other systems than Linux."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]


def memory() -> dict[str, int] | None:
    """Return `total` and `free` memory in bytes from /proc/meminfo; None on other systems than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
        return {"total": sizes["MemTotal"], "free": sizes["MemAvailable"]}
    except (OSError, ValueError, KeyError):
        return None


def accelerators() -> dict[str, Any]:
    """Find accelerators without torch: the list of `nvidia-smi`, AMD's device file, Apple's processor.

    Returns:
        `seen`, one line per accelerator, and `source`, the program or file that listed them, or its error.
    """
    if shutil.which("nvidia-smi"):
        output = _run(["nvidia-smi", *_SMI], SMI_TIMEOUT_S)
        if isinstance(output, str):
            return {"seen": [line.strip() for line in output.splitlines() if line.strip()], "source": "nvidia-smi"}
        return {"seen": [], "source": f"nvidia-smi {output['failed']}"}
    if Path("/dev/kfd").exists():
        return {"seen": ["AMD, driver loaded"], "source": "/dev/kfd"}
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return {"seen": ["Apple silicon"], "source": "platform"}
    return {"seen": [], "source": "no nvidia-smi, no /dev/kfd"}


def torch_devices(timeout_s: float = TORCH_TIMEOUT_S) -> dict[str, Any]:
    """Import torch in a separate process; return its version, threads and devices, or `failed` with the reason."""
    # -P keeps a torch.py in the working folder from being imported.
    output = _run([sys.executable, "-P", "-c", _TORCH_DEVICES], timeout_s)
    if not isinstance(output, str):
        return output
    try:
        devices: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": f"printed no JSON: {output[-200:]!r}"}
    return devices


def _run(command: list[str], timeout_s: float) -> str | dict[str, str]:
    """Return the output of a command, or `failed` with the reason in one line."""
    try:
        done = run(command, limit_s=timeout_s)
    except OSError as error:
        return {"failed": f"could not be started: {error}"}
    if done.code is None:
        return {"failed": f"did not finish within {timeout_s:g} s"}
    if done.code:
        lines = (done.errors or done.output).strip().splitlines()
        return {"failed": f"exited with {done.code}" + (f": {lines[-1]}" if lines else "")}
    return done.output


def disk(folder: Path) -> dict[str, Any]:
    """Check that files can be created in `folder` or its nearest existing parent, and measure the free space there.

    Returns:
        `writable`, `free` in bytes (None if unknown), and `error`, empty if writable.
    """
    parent = folder.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    free = None
    try:
        free = shutil.disk_usage(parent).free
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"rlcore")
            file.flush()
    except OSError as error:
        return {"writable": False, "free": free, "error": error.strerror or str(error)}
    return {"writable": True, "free": free, "error": ""}


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the cache folder for models and data sets from the hub, as `huggingface_hub` resolves it."""
    if "HF_HUB_CACHE" in environ:
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    home = environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    return Path(home).expanduser() / "hub"


@attrs.frozen
class Package:
    """A package that a dist requires, and its installed version.

    Attributes:
        name: name of the package.
        required: required versions, such as `>=2.6`; empty if any version fits.
        installed: installed version; None if the package is not installed.
        extra: the extra of the dist that requires it; empty if the dist always does.
        fits: whether the package is installed in a required version.
    """

    name: str
    required: str
    installed: str | None
    extra: str
    fits: bool

    @property
    def complaint(self) -> str:
        """The problem, as a text that follows the dist's name; empty if there is none."""
        if self.fits or (self.extra and self.installed is None):
            return ""
        requirement = f"{self.name}{self.required}"
        state = "it is not installed" if self.installed is None else f"{self.name} {self.installed} is installed"
        return f"needs {requirement}, and {state}: pip install '{requirement}'"


@cache
def installed_version(name: str) -> str | None:
    """Return the version of an installed dist, `?` if it has none, or None if there is no such dist."""
    dist = installed_dist(name)
    try:
        return None if dist is None else str((dist.metadata.get_all("Version") or ["?"])[0])
    except (ValueError, OSError):  # unreadable metadata
        return "?"


def requirements(dist: Distribution, *, skip: tuple[str, ...] = ()) -> Iterator[Package]:
    """Yield the requirements of `dist` on this machine, those of extras last; the extras in `skip` are ignored."""
    lines = [requirement for line in dist.requires or () if (requirement := _parse(line))]
    extras = [extra for extra in dist.metadata.get_all("Provides-Extra") or () if extra not in skip]
    always = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    for line in always:
        yield _compare(line, "")
    for extra in extras:
        for line in lines:
            if line not in always and line.marker is not None and line.marker.evaluate({"extra": extra}):
                yield _compare(line, extra)


def _parse(line: str) -> Requirement | None:
    """Parse a requirement; None if it is invalid, which discovery reports for plugins."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _compare(requirement: Requirement, extra: str) -> Package:
    version = installed_version(requirement.name)
    try:
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = False
    required = ",".join(sorted(str(requirement.specifier).split(","), reverse=True))  # >=5,<6 reads better than <6,>=5
    return Package(requirement.name, required, version, extra, fits)
