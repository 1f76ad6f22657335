"""A report that follows its runs: served on this machine only, and read anew when a run has written something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.html_page import html_page, to_script
from rlcore_report.page_data import page_data
from rlcore_report.run_record import read_run

ADDRESS = "127.0.0.1"


class ReportServer(ThreadingHTTPServer):
    """Serves the page of runs at `/` and its data at `/data.json`.

    Requests must name this machine as their host, so that no page of another site can read the answers by way of a
    domain that resolves to this machine.

    Args:
        folders: the runs' folders.
        port: the port; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], *, port: int = 0) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self._folders, self._lock, self._kept = tuple(folders), Lock(), dict[str, tuple[str, bytes]]()
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def page(self) -> bytes:
        """Return the page."""
        return self._fresh("page", lambda runs, stamp: html_page(runs, stamp=stamp))

    def data(self) -> bytes:
        """Return the data of the page."""
        return self._fresh("data", lambda runs, stamp: to_script(page_data(runs, stamp=stamp)))

    def _fresh(self, name: str, make: Callable[[list[Any], str], str]) -> bytes:
        """Return what was made last, or make it anew if a file of a run has changed since."""
        with self._lock:
            stamp = "-".join(map(_stamp, self._folders))
            if self._kept.get(name, ("", b""))[0] != stamp:
                runs = [read_run(folder) for folder in self._folders]
                self._kept[name] = (stamp, make(runs, stamp).encode())
            return self._kept[name][1]


def _stamp(folder: Path) -> str:
    """Return a text that changes when the files of a run change."""
    run = RunDir(folder)
    files = (run.metrics, run.completions, run.rollouts, run.config)
    found = [file.stat() for file in files if file.exists()]
    return ".".join(f"{each.st_size}.{each.st_mtime_ns}" for each in found)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        pages = {"/": (self.server.page, "text/html"), "/data.json": (self.server.data, "application/json")}
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN, "the host must be this machine")
        elif self.path not in pages:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            make, kind = pages[self.path]
            body = make()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the parameter's name in http.server
        """Write nothing: a page asks for newer data every few seconds."""
