"""A program that runs code of a policy within limits; `code_tests` starts it, once for each test.

Code and test arrive as JSON on a file descriptor, whose number is the argument. A statement (`assert f(1) == 2`) passes
if a token, which arrives with it, is written back after it was run: leaving the interpreter early is no pass. For a
test with input and output, the parent compares what the code printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys

MIB = 2**20
SOCKET_CALLS = {"x86_64": (0xC000003E, 41, 53), "aarch64": (0xC00000B7, 198, 199)}
"""Machine → its number in filters of system calls, and those of `socket` and `socketpair`."""
X32 = 0x40000000
"""Added to the numbers of system calls by which a program of x86_64 names the same calls."""
IO_URING_SETUP = 425
NO_NEW_PRIVILEGES, SET_FILTER, FILTER = 38, 22, 2


def _refuse_sockets() -> None:
    """Let the kernel refuse this process, and all that it starts, new sockets; nothing happens on other systems.

    A namespace hides the network, but not the sockets in the file system, such as that of a container engine.
    Connected pairs of stream sockets, with which event loops wake themselves, are allowed: they cannot send to another
    address, as pairs of datagram sockets can.
    """
    if sys.platform != "linux" or platform.machine() not in SOCKET_CALLS:
        return
    machine, socket_call, pair_call = SOCKET_CALLS[platform.machine()]
    load, equal, at_least, both, end = 0x20, 0x15, 0x35, 0x54, 0x06
    stream, kinds, second_argument = 1, 0xF, 24
    program = [
        (load, 0, 0, 4), (equal, 0, 8, machine), (load, 0, 0, 0), (at_least, 6, 0, X32), (equal, 5, 0, IO_URING_SETUP),
        (equal, 4, 0, socket_call), (equal, 0, 4, pair_call), (load, 0, 0, second_argument), (both, 0, 0, kinds),
        (equal, 1, 0, stream), (end, 0, 0, 0x00050000 | 13), (end, 0, 0, 0x7FFF0000),
    ]  # fmt: skip
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    whole = ctypes.create_string_buffer(struct.pack("HL", len(program), ctypes.addressof(steps)))
    call = ctypes.CDLL(None).prctl
    call(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(SET_FILTER, FILTER, whole, 0, 0)


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
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    if not job["sockets"]:
        _refuse_sockets()
    _limit(job["limits"])  # before the code is compiled, which can take any amount of memory and time too
    code = compile(job["code"], "answer.py", "exec")
    test = None if job["test"] is None else compile(job["test"], "test.py", "exec")
    exec(code, names)  # noqa: S102  within these limits
    if test is not None:
        exec(test, names)  # noqa: S102
        os.write(channel, token.encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
