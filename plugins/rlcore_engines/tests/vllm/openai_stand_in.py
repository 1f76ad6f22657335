"""A server that answers as one with `/v1/completions`, with a small model in its place, and misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from vllm_stand_in import _processed

from rlcore_testing.small import EOS, LETTERS, make_gpt2

FIELDS = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
EXTRA = {"top_k", "min_tokens", "stop_token_ids", "ignore_eos", "return_token_ids", "min_p", "repetition_penalty"}
UNKNOWN = LETTERS.index("?")
STATUS = {"refuses": 400, "unknown": 404, "busy": 429, "fails": 500, "moved": 307}


class OpenAIStandIn:
    """The server.

    Attributes:
        key: the key that it wants; None: none.
        fields: the fields that it accepts.
        takes_tokens: whether a prompt may be token ids.
        states_reason: whether it states what ended a completion, as vLLM does.
        keeps_stop: whether the text includes the stop sequence that ended it.
        faults: names of what is wrong with the next completions, one each.
        retry_after: header of its answers of status 429.
        asked: the bodies of all requests.
        most_at_once: the largest number of requests that were open at a time.
    """

    def __init__(self) -> None:
        self.key: str | None = None
        self.fields, self.takes_tokens, self.states_reason, self.keeps_stop = set(FIELDS), False, False, False
        self.faults: deque[str] = deque()
        self.retry_after, self.pause_s = "0", 0.0
        self.asked = list[dict[str, Any]]()
        self.running = self.most_at_once = 0
        self._model, self._logits = make_gpt2(seed=5), dict[tuple[int, ...], torch.Tensor]()
        self._lock, self._closed = threading.Lock(), threading.Event()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stand_in.answer(self, json.loads(content))

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                pass  # a client may leave before it has its answer

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def completions(self) -> list[dict[str, Any]]:
        """Return the requests that are no probes of one token."""
        return [body for body in self.asked if body["max_tokens"] > 1]

    def answer(self, request: Any, body: dict[str, Any]) -> None:
        with self._lock:
            self.asked.append(body)
            self.running += 1
            self.most_at_once = max(self.running, self.most_at_once)
            fault = self.faults.popleft() if self.faults else ""
        time.sleep(self.pause_s)
        status, answer = self.reply(request, body, fault)
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        with self._lock:
            self.running -= 1
        if fault == "dies":
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return
        if fault == "late":
            self._closed.wait()
        request.send_response(status)
        request.send_header("Content-Length", str(len(content) + (fault == "breaks_off")))
        if status == 429:
            request.send_header("Retry-After", self.retry_after)
        request.end_headers()
        for part in [content[i : i + 8] for i in range(0, len(content), 8)] if fault == "trickles" else [content]:
            request.wfile.write(part)
            self._closed.wait(0.5 if fault == "trickles" else 0.0)
        if fault == "breaks_off":
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True

    def reply(self, request: Any, body: dict[str, Any], fault: str) -> tuple[int, Any]:
        sent = request.headers.get("Authorization")
        if fault in STATUS:
            return STATUS[fault], {"error": {"message": f"it {fault}"}}
        if request.path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        if self.key is not None and sent != f"Bearer {self.key}":
            return 401, {"error": {"message": f"Incorrect API key provided: {sent}"}}
        if unknown := body.keys() - self.fields:
            return 400, {"error": {"message": f"unknown fields {sorted(unknown)}"}}
        if not isinstance(body["prompt"], str) and not self.takes_tokens:
            return 400, {"detail": "prompt must be a string."}
        if fault == "babbles":
            return 200, "<html>"
        with self._lock:
            choice = self.choice(body)
        return 200, spoilt({"object": "text_completion", "choices": [choice]}, fault, body["max_tokens"])

    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        ids = [LETTERS.index(letter) for letter in prompt] if isinstance(prompt, str) else prompt
        ends = body.get("stop_token_ids", []) if body.get("ignore_eos") else [EOS]
        tokens, stop = self.sample(ids, body, ends)
        text = letters(tokens)
        if isinstance(stop, str) and not self.keeps_stop:
            text = text[: text.index(stop)]
        finish = "length" if stop is None else "stop"
        choice = {"index": 0, "text": (letters(ids) if body.get("echo") else "") + text, "finish_reason": finish}
        if self.states_reason:
            choice["stop_reason"] = None if stop == EOS and not body.get("ignore_eos") else stop
        if body.get("return_token_ids"):
            choice["token_ids"] = tokens
        return choice

    @torch.no_grad()
    def sample(self, prompt: list[int], body: dict[str, Any], ends: list[int]) -> tuple[list[int], int | str | None]:
        generator = torch.Generator().manual_seed(body.get("seed", 0))
        parameters = {"top_k": 0, **body}
        tokens: list[int] = []
        while len(tokens) < body["max_tokens"]:
            logits = self._next((*prompt, *tokens)).clone()
            if len(tokens) < body.get("min_tokens", 0):
                logits[ends] = -torch.inf
            processed = _processed(logits, parameters, (*prompt, *tokens))
            is_greedy = body["temperature"] == 0
            token = int(processed.argmax() if is_greedy else torch.multinomial(processed.exp(), 1, generator=generator))
            tokens.append(token)
            if token in ends:
                return tokens, token
            for stop in body.get("stop", []):
                if stop in letters(tokens):
                    return tokens, stop
        return tokens, None

    def _next(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens not in self._logits:
            self._logits[tokens] = self._model(torch.tensor([tokens])).logits[0, -1].float()
        return self._logits[tokens]


def letters(tokens: list[int]) -> str:
    """Return the text of tokens, without special ones."""
    return "".join(LETTERS[token] for token in tokens if token < UNKNOWN)


def spoilt(answer: dict[str, Any], fault: str, limit: int) -> Any:
    """Change a right answer into a wrong one."""
    choice = answer["choices"][0]
    changes: dict[str, Callable[[], Any]] = {
        "twice": lambda: answer["choices"].append({**choice, "index": 1}),
        "none": answer["choices"].clear,
        "no_choices": lambda: answer.pop("choices"),
        "no_text": lambda: choice.update(message={"content": choice.pop("text")}),
        "no_finish": lambda: choice.pop("finish_reason"),
        "filtered": lambda: choice.update(finish_reason="content_filter"),
        "empty": lambda: choice.update(text="", finish_reason="length"),
        "only_eos": lambda: choice.update(text="", finish_reason="stop"),
        "longer": lambda: choice.update(text="b" * (limit + 3), finish_reason="stop"),
        "huge": lambda: choice.update(text="b" * 1_000_000, finish_reason="length"),
        "no_tokens": lambda: choice.pop("token_ids"),
        "other_tokens": lambda: choice.update(token_ids=[(token + 1) % 30 for token in choice["token_ids"]]),
    }
    changes.get(fault, lambda: None)()
    return [answer] if fault == "list" else answer
