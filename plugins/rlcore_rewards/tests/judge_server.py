"""A stand-in for a server with the API of OpenAI, which misbehaves where a text says so."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JudgeServer:
    """Answers `Score: N` with the number of letters of the judged text, which stands between `<` and `>`.

    A text that contains one of these words is treated as follows, by the number of its earlier requests:

    * `flaky`: 503, then an answer.
    * `busy`: 429 with `Retry-After: 0`, twice, then an answer.
    * `broken`: always 500.
    * `cut`: the connection is closed without an answer.
    * `slow`: no answer until the server is closed.
    * `vague`: an answer without a score.
    * `high`: an answer with the score 99.
    * `garbled`: 200 with something that is no JSON.
    * `nested`: 200 with JSON that is too deep to be read.
    * `countless`: 200 with an infinite number of tokens.
    """

    def __init__(self) -> None:  # noqa: C901  the classes inside know the server
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: Counter[str] = Counter()
        self.running = self.most_running = 0
        self.refusal: tuple[int, str] | None = None
        self.repeats = ""
        self.delay_s = 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.running += 1
                    server.most_running = max(server.most_running, server.running)
                    server.seen.append({"path": self.path, **body})
                    server.keys.append(self.headers.get("Authorization"))
                try:
                    time.sleep(server.delay_s)
                    self._answer(re.findall("<(.*?)>", body["messages"][-1]["content"], re.DOTALL)[-1])
                finally:
                    with server._lock:
                        server.running -= 1

            def _answer(self, text: str) -> None:
                with server._lock:
                    earlier = server.times[text]
                    server.times[text] += 1
                if server.refusal is not None:
                    self._send(server.refusal[0], server.refusal[1].encode())
                elif "cut" in text:
                    self.close_connection = True
                elif "broken" in text or ("flaky" in text and not earlier):
                    self._send(500 if "broken" in text else 503, b"out of order")
                elif "busy" in text and earlier < 2:
                    self._send(429, b"too many", {"Retry-After": "0"})
                elif "garbled" in text:
                    self._send(200, b"<html>")
                elif "nested" in text:
                    self._send(200, b"[" * 200_000)
                elif "countless" in text:
                    self._send(200, b'{"usage": {"total_tokens": 1e999}}')
                else:
                    if "slow" in text:
                        server._closed.wait()
                    score = "99" if "high" in text else str(sum(each.isalpha() for each in text))
                    content = (
                        f"{server.repeats}I cannot say."
                        if "vague" in text
                        else f"A first Score: 1, or rather\nScore: {score}"
                    )
                    message = {"choices": [{"message": {"role": "assistant", "content": content}}]}
                    self._send(200, json.dumps({**message, "usage": {"total_tokens": 10}}).encode())

            def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Print nothing of clients that have gone."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
