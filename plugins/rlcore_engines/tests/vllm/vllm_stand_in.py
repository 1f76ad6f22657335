"""A server that answers as vLLM 0.32 does, as far as the sampler asks, with a small model of transformers in its place.

Its answers have the form of recorded ones (`recorded_answer.json`). It samples with one generator per request, loads
weights from the files that it is told, and misbehaves on request: `faults` holds what happens to the next completions.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch._C._distributed_c10d import TCPStore
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlcore_engines.vllm.weight_group import WeightGroup, joins
from rlcore_testing.small import LETTERS, make_gpt2

ANSWER = json.loads(Path(__file__).with_name("recorded_answer.json").read_text())


class StandIn:
    """The server.

    Attributes:
        version: of the weights.
        faults: names of what is wrong with the next completions, one each.
        asked: the bodies of all requests for completions.
        calls: paths of all other POST requests.
        headers: of all POST requests.
        info: what `/server_info` says of the model, and of the weight transfer.
        keeps_head: new weights do not reach the head, as with a tied head on vLLM's CPU backend.
        keeps_weights: new weights reach nothing, though the version rises.
        is_asleep: whether it was put to sleep; it then refuses whatever needs weights.
        has_scale_out: whether there is a path for token ids.
        before_token: called before each new token with the request and the number of tokens before it; the weights may
            change meanwhile, and sample the rest.
        before_bucket: called with the group before weights are received that are broadcast.
    """

    def __init__(self, port: int = 0) -> None:
        self.version, self.asked, self.calls = "default", list[dict[str, Any]](), list[str]()
        self.headers: list[dict[str, str]] = []
        self.faults: deque[str] = deque()
        self.info: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "dtype": "torch.float32"}
        self.transfer, self.max_model_len, self.has_scale_out = "rlcore", 64, True
        self.keeps_head = self.keeps_weights = self.is_asleep = False
        self.before_token: Callable[[dict[str, Any], int], object] = lambda _body, _count: None
        self.model: PreTrainedModel = make_gpt2(seed=5)
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}
        self._lock, self._paused, self._is_updating = threading.Condition(), False, False
        self._group: WeightGroup | None = None
        self.before_bucket: Callable[[WeightGroup], object] = lambda _group: None
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(*stand_in.get(self.path.partition("?")[0]))

            def do_POST(self) -> None:
                stand_in.headers.append(dict(self.headers))
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
                status, answer = stand_in.post(self.path, body)
                if status == 0:  # the server dies in the middle of the request
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.reply(status, answer)

            def reply(self, status: int, answer: Any) -> None:
                content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                pass  # a client may leave before it has its answer

        self._server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/health":
            return 200, ""
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path == "/is_sleeping":
            return 200, {"is_sleeping": self.is_asleep}
        if path == "/server_info":
            model = {**self.info, "max_model_len": self.max_model_len}
            return 200, {"vllm_config": {"model_config": model, "weight_transfer_config": {"backend": self.transfer}}}
        if path == "/inference/v1/generate":
            return (405, {"detail": "Method Not Allowed"}) if self.has_scale_out else (403, {"error": "disabled"})
        return 404, {"detail": "Not Found"}

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        if self.is_asleep and path != "/wake_up":
            return 400, {"error": {"message": "it sleeps"}}
        if path == "/inference/v1/generate":
            return self.generate(body)
        self.calls.append(path)
        if path == "/restart":  # a server that was started anew has other weights
            self.version, self.model, self._group, self._is_updating = "default", make_gpt2(seed=6), None, False
            self._logits.clear()
        elif path.startswith("/sleep?") or path == "/wake_up":
            self.is_asleep = path != "/wake_up"
        elif path == "/init_weight_transfer_engine" and body["init_info"]:
            return self.join(**body["init_info"])
        elif path in ("/start_weight_update", "/update_weights", "/finish_weight_update"):
            return self.change_weights(path, body)
        elif path in ("/pause?mode=keep", "/resume"):
            with self._lock:
                self._paused = path != "/resume"
                self._lock.notify_all()
        return 200, {"success": True} if path == "/reset_prefix_cache" else {"message": "done"}

    def change_weights(self, path: str, body: Any) -> tuple[int, Any]:
        """Take a step of a change of the weights: vLLM begins none before the last one has ended."""
        if self._is_updating == (path == "/start_weight_update"):
            wrong = "while a weight update is already active" if self._is_updating else "before start_weight_update"
            return 500, {"error": {"message": f"{path[1:]} called {wrong}."}}
        status, answer = self.update(**body["update_info"]) if path == "/update_weights" else (200, {})
        if path == "/finish_weight_update":
            self.version = body.get("weight_version", self.version)
        self._is_updating = status == 200 and path != "/finish_weight_update"
        return status, answer

    def join(self, group: str, *, is_new: bool, host: str = "", port: int = 0, **shape: Any) -> tuple[int, Any]:
        if not is_new:
            known = self._group is not None and self._group.name == group
            return (200, {}) if known else (500, {"error": {"message": "it is not in the group"}})
        store = TCPStore(host, port, None, is_master=False)
        joins(store, group, 1)
        self._group = WeightGroup(store, group, rank=1, address=host, **shape)
        return 200, {}

    def update(self, path: str = "", buckets: Sequence[Any] = ()) -> tuple[int, Any]:
        if path:
            self.load(path)
            return 200, {}
        assert self._group is not None
        weights = dict[str, torch.Tensor]()
        try:
            for name, value in self._group.receive(buckets):
                weights[name] = value
                self.before_bucket(self._group)
        except (RuntimeError, ValueError) as error:
            self._group = None
            return 500, {"error": {"message": f"it fails: {error}"}}
        self.replace(weights, self.model.config)
        return 200, {}

    def load(self, path: str) -> None:
        """Load the weights in a folder, with the configuration beside them as that of the server."""
        weights = {name: each for file in Path(path).glob("*.safetensors") for name, each in load_file(file).items()}
        self.replace(weights, AutoConfig.from_pretrained(path))

    def replace(self, weights: dict[str, torch.Tensor], config: Any) -> None:
        with self._lock:
            if self.keeps_weights:
                return
            head = self.model.get_output_embeddings().weight.detach().clone()
            with torch.random.fork_rng(devices=[]):  # a server has random numbers of its own
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            unknown = model.load_state_dict(weights, strict=False)
            assert not unknown.unexpected_keys
            if self.keeps_head:
                model.lm_head.weight = torch.nn.Parameter(head)
            self.model = model
            self._logits.clear()

    def generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append(body)
        fault = self.faults.popleft() if self.faults else ""
        if fault == "late":
            time.sleep(1.0)
        if fault in ("dies", "fails", "refuses"):
            return {"dies": 0, "fails": 500, "refuses": 400}[fault], {"error": {"message": f"it {fault}"}}
        if fault == "babbles":
            return 200, "<html>"
        answer = self._answer(*self._sample(body))
        if fault:
            spoil(answer["choices"][0], answer["choices"], fault)
        return 200, answer

    def _answer(self, tokens: list[int], logprobs: list[float], used: list[str], reason: str) -> dict[str, Any]:
        starts = [i for i in range(len(used)) if i == 0 or used[i] != used[i - 1]]
        ends = [*starts[1:], len(used)]
        choice = {
            **ANSWER["choices"][0],
            "finish_reason": reason,
            "token_ids": tokens,
            "weight_versions": [
                {"version": used[i], "start": i, "end": end} for i, end in zip(starts, ends, strict=True)
            ],
            "logprobs": {"content": [_entry(*each) for each in zip(tokens, logprobs, strict=True)]},
        }
        return {**ANSWER, "choices": [choice]}

    @torch.no_grad()
    def _sample(self, body: dict[str, Any]) -> tuple[list[int], list[float], list[str], str]:
        prompt, parameters = body["token_ids"], body["sampling_params"]
        generator = torch.Generator().manual_seed(parameters.get("seed", len(self.asked)))
        tokens: list[int] = []
        logprobs: list[float] = []
        used: list[str] = []
        while True:
            self.before_token(body, len(tokens))
            with self._lock:
                self._lock.wait_for(lambda: not self._paused)
                logits = self._next((*prompt, *tokens)).clone()
                used.append(self.version)
            if len(tokens) < parameters["min_tokens"]:
                logits[parameters["stop_token_ids"]] = -torch.inf
            processed = _processed(logits, parameters, (*prompt, *tokens))
            if parameters["temperature"] == 0:
                token = int(processed.argmax())
            else:
                token = int(torch.multinomial(processed.exp(), 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(processed[token]))
            text = "".join(LETTERS[each] if each < len(LETTERS) else "" for each in tokens)
            if token in parameters["stop_token_ids"] or any(stop in text for stop in parameters["stop"]):
                return tokens, logprobs, used, "stop"
            if len(tokens) == parameters["max_tokens"]:
                return tokens, logprobs, used, "length"

    def _next(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens not in self._logits:
            self._logits[tokens] = self.model(torch.tensor([tokens])).logits[0, -1].float()
        return self._logits[tokens]


def _processed(logits: torch.Tensor, parameters: dict[str, Any], read: tuple[int, ...]) -> torch.Tensor:
    """Return log-probs after all options, in vLLM's order, as its `processed_logprobs`."""
    if allowed := parameters.get("allowed_token_ids"):
        excluded = torch.ones_like(logits, dtype=torch.bool)
        excluded[allowed] = False
        logits = logits.masked_fill(excluded, -torch.inf)
    for token, bias in (parameters.get("logit_bias") or {}).items():
        logits[int(token)] += max(-100.0, min(bias, 100.0))
    penalty = parameters.get("repetition_penalty", 1.0)
    for token in set(read):
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    if parameters["temperature"] == 0:
        return logits.log_softmax(-1)
    logits = logits / parameters["temperature"]
    if parameters.get("min_p", 0.0) > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < parameters["min_p"] * probabilities.max(), -torch.inf)
    if parameters["top_k"] > 0:
        logits = logits.masked_fill(logits < logits.topk(parameters["top_k"]).values[-1], -torch.inf)
    if parameters["top_p"] < 1:
        ordered, order = logits.softmax(-1).sort(descending=True)
        logits[order[(ordered.cumsum(-1) - ordered) >= parameters["top_p"]]] = -torch.inf
    return logits.log_softmax(-1)


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}


def spoil(choice: dict[str, Any], choices: list[Any], fault: str) -> None:
    """Change a right answer into a wrong one."""
    content, tokens, versions = choice["logprobs"]["content"], choice["token_ids"], choice["weight_versions"]
    if fault in ("short", "long"):
        _resize(tokens, content, fault)
        versions[0]["end"] = len(tokens)
        choice["finish_reason"] = "length"
        return
    changes: dict[str, Callable[[], Any]] = {
        "twice": lambda: choices.append({**choice, "index": 1}),
        "lacks_logprobs": content.pop,
        "other_token": lambda: content[-1].update(token_id=content[-1]["token_id"] + 1),
        "not_a_number": lambda: content[0].update(logprob=-9999.0, rank=None),
        "old": lambda: versions[0].update(version="earlier"),
        "no_version": lambda: choice.update(weight_versions=None),
        "aborted": lambda: choice.update(finish_reason="abort"),
        "late": lambda: None,
    }
    changes[fault]()


def _resize(tokens: list[int], content: list[Any], fault: str) -> None:
    if fault == "short":
        tokens.pop()
        content.pop()
    else:
        tokens.append(0)
        content.append(_entry(0, -1.0))
