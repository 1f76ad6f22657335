"""A server with /v1/completions that returns the log-probs of a prompt as vLLM does, with a small model."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from rlcore_testing.small import make_llama, make_tokenizer


class LogprobServer:
    """The server.

    Attributes:
        asked: the bodies of all requests.
        changes: replaces entries of the answers' choice, such as {"prompt_logprobs": None}.
        shift: added to ids before they are decoded, as with another tokenizer.
    """

    def __init__(self) -> None:
        self.asked, self.changes, self.shift, self.status = list[dict[str, Any]](), dict[str, Any](), 0, 200
        self.model, self._tokenizer = make_llama(seed=7, width=24), make_tokenizer()
        self._lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stand_in._lock:
                    stand_in.asked.append(body)
                    answer = json.dumps({"choices": [stand_in.choice(body) | stand_in.changes]}).encode()
                self.send_response(stand_in.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a client that has seen an error leaves before it has its other answers

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @torch.no_grad()
    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, count = body["prompt"], body["prompt_logprobs"]
        logprobs = self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        given: list[Any] = [None]
        for t in range(1, len(tokens)):
            named, ids = logprobs[t - 1].topk(count)
            found = dict(zip(ids.tolist(), named.tolist(), strict=True))
            found[tokens[t]] = float(logprobs[t - 1, tokens[t]])  # the prompt's own token is always there
            given.append({
                str(number): {"logprob": each, "rank": 1, "decoded_token": self._decoded(number)}
                for number, each in found.items()
            })  # fmt: skip
        return {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": given}

    def _decoded(self, number: int) -> str:
        (text,) = self._tokenizer.decode(
            [[(number + self.shift) % 30 if self.shift else number]], skip_special_tokens=False
        )
        return text
