"""A dashboard of runs: served on this machine only, and read anew when a run has written something."""

from __future__ import annotations

import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rlcore_report.html_page import policy_of, readable_data, shell_page, to_script
from rlcore_report.run_list import RunList
from rlcore_report.stamps import page_stamp

ADDRESS = "127.0.0.1"
MAX_RUNS = 60
"""Runs of one page."""
KEPT = 8
"""Pages that are kept until a file of their runs changes."""


class ReportServer(ThreadingHTTPServer):
    """Serves a page at `/`, the list of runs at `/runs.json`, and the data of chosen runs at `/data.json?run=KEY`.

    Requests must name this machine as their host, so that no page of another site can read the answers by way of a
    domain that resolves to this machine.

    Args:
        folders: the runs' folders, which the page opens at first.
        roots: folders that contain runs.
        port: the port; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], *, roots: Sequence[Path] = (), port: int = 0) -> None:
        self.list = RunList(roots, folders)
        super().__init__((ADDRESS, port), _Handler)
        self._opened = list(self.list.folders()) if not roots else []
        self._lock, self._kept = Lock(), OrderedDict[tuple[str, ...], tuple[str, bytes]]()
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def server_close(self) -> None:
        """Close the socket, and end the thread that makes verdicts."""
        super().server_close()
        self.list.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a request that failed, unless a browser has left before its answer was complete."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def page(self, _asked: dict[str, list[str]]) -> bytes:
        """Return the page, which asks for the rest."""
        return shell_page({"live": True, "opened": self._opened, "most": MAX_RUNS}).encode()

    def runs(self, asked: dict[str, list[str]]) -> bytes:
        """Return the list of runs, or that it is still the one of the stamp that is asked with."""
        rows = self.list.rows()
        return _stamped({"common": dict(sorted(self.list.common(rows).items())), "runs": rows}, asked)

    def data(self, asked: dict[str, list[str]]) -> bytes | None:
        """Return the data of the runs whose keys are asked for; None if one does not exist."""
        keys = tuple(asked.get("run", ()))
        folders = [self.list.folder(key) for key in keys]
        if not keys or None in folders:
            return None
        found = [folder for folder in folders if folder is not None]
        stamp = "-".join(map(page_stamp, found))
        if stamp in asked.get("stamp", ()):
            return to_script({"stamp": stamp, "same": True}).encode()
        with self._lock:
            kept = self._kept.get(keys, ("", b""))
        if kept[0] != stamp:  # without the lock, so that a large run delays no other
            kept = (stamp, readable_data(found, stamp=stamp, keys=keys).encode())
        with self._lock:
            self._kept[keys] = kept
            self._kept.move_to_end(keys)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept[1]


def _stamped(content: dict[str, Any], asked: dict[str, list[str]]) -> bytes:
    stamp = f"{hash(json.dumps(content)) & 0xFFFFFFFFFFFF:x}"
    same = stamp in asked.get("stamp", ())
    return to_script({"stamp": stamp, "now": time.time(), **({"same": True} if same else content)}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 60

    def do_GET(self) -> None:
        server = self.server
        pages: dict[str, tuple[Callable[[dict[str, list[str]]], bytes | None], str]] = {
            "/": (server.page, "text/html"),
            "/runs.json": (server.runs, "application/json"),
            "/data.json": (server.data, "application/json"),
        }
        try:
            parts = urlsplit(self.path)
        except ValueError:  # such as http://[::1, half an address
            self.send_error(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        if self.headers.get("Host") not in server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN, "the host must be this machine")
        elif parts.path != "/" and self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self.send_error(HTTPStatus.FORBIDDEN, "the page of another site may not ask")
        elif parts.path not in pages:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            make, kind = pages[parts.path]
            try:
                asked = parse_qs(parts.query, max_num_fields=MAX_RUNS + 2)
            except ValueError:
                asked = None
            if asked is None or len(asked.get("run", ())) > MAX_RUNS:
                self.send_error(HTTPStatus.BAD_REQUEST, f"a page shows at most {MAX_RUNS} runs: select fewer")
                return
            body = make(asked)
            if body is None:
                self.send_error(HTTPStatus.NOT_FOUND, "no such run")
            else:
                self._answer(body, kind)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", f"{policy_of(live=True)}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the parameter's name in http.server
        """Write nothing: a page asks for newer data every few seconds."""
