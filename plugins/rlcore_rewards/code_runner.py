"""A program that runs code of a policy within limits; `sandbox` starts it, once for each test.

Code and test arrive as JSON on a file descriptor, whose number is the argument. A statement (`assert f(1) == 2`) passes
if a token, which arrives with it, is written back after it was run: leaving the interpreter early is no pass. For a
test with input and output, the parent compares what the code printed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

MIB = 2**20


def _limit(limits: dict[str, int]) -> None:
    sizes = {
        resource.RLIMIT_AS: limits["memory_mb"] * MIB,
        resource.RLIMIT_FSIZE: limits["file_mb"] * MIB,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_CORE: 0,
    }
    if limits["processes"]:
        sizes[resource.RLIMIT_NPROC] = limits["processes"]
    for kind, size in sizes.items():
        hard = resource.getrlimit(kind)[1]
        most = size if hard == resource.RLIM_INFINITY else min(size, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS has no limit of the address space
            if sys.platform == "linux":
                raise


def main(channel: int) -> None:
    """Run the code and its test."""
    with os.fdopen(os.dup(channel), encoding="utf-8") as file:
        job = json.loads(file.read())
    token = job["token"]
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    code = compile(job["code"], "answer.py", "exec")
    test = None if job["test"] is None else compile(job["test"], "test.py", "exec")
    _limit(job["limits"])
    exec(code, names)  # noqa: S102  within these limits
    if test is not None:
        exec(test, names)  # noqa: S102
        os.write(channel, token.encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
