"""Serve an application in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import uvicorn

from rlcore.errors import ConfigError

START_S = 10.0


class PageServer:
    """A server that runs until `close`.

    Args:
        app: an ASGI application.
        host: address to listen at.
        port: port to listen at; 0: a free one.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, app: Any, *, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"human.host = {host!r}, human.port = {port}: the page cannot be served there: {error}; choose another "
                "port, or 0 for a free one"
            ) from error
        name = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104  compared, not bound
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self._socket.getsockname()[1]}/"
        options = uvicorn.Config(
            app, log_config=None, log_level="error", access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(options)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="rlcore-human", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving; open requests are answered."""
        self._server.should_exit = True
        self._thread.join(START_S)
        self._socket.close()
