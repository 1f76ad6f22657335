"""A Python with openenv, and a server that it runs; `openenv_texts` is importable in the tests of this folder.

The Python is that of a virtual environment in a temporary folder. Set OPENENV_PYTHON to one that has openenv to save
its installation.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from library_pythons import library_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def openenv_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return library_python("openenv", "openenv>=0.10,<0.11", tmp_path_factory.mktemp("pythons") / "openenv")


@pytest.fixture(scope="session")
def start_server(openenv_python: str) -> Iterator[Callable[..., tuple[str, subprocess.Popen[bytes]]]]:
    """Yield a function that starts a server at a port, any free one if it is 0, and waits until it listens.

    Further arguments are those of the server.
    """
    begun: list[subprocess.Popen[bytes]] = []

    def start(port: int, *given: str) -> tuple[str, subprocess.Popen[bytes]]:
        if not port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        begun.append(subprocess.Popen([openenv_python, str(HERE / "guess_server.py"), str(port), *given], cwd=HERE))
        for _ in range(600):
            assert begun[-1].poll() is None, "the server has ended"
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://127.0.0.1:{port}", begun[-1]
            time.sleep(0.1)
        raise TimeoutError("the server does not listen")

    yield start
    for server in begun:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def url(start_server: Callable[..., tuple[str, subprocess.Popen[bytes]]]) -> str:
    """Return the address of a server that no test stops."""
    return start_server(0)[0]
