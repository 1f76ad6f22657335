"""One vLLM server over HTTP: what it is, and new weights for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore_engines.vllm.connection import CONNECT_S, Connection, EngineError, Reply, ServerUnavailable
from rlcore_engines.vllm.generation import PATH

BACKEND = "rlcore"
"""Name of the weight-transfer engine in `engine_worker`."""
POLL_S = 0.2
PATIENCE_S = 60.0
"""How long a server is waited for before the reason is logged."""
NO_KEY, WRONG_METHOD = 401, 405
ALREADY = "a weight update is already active"
"""What a server answers whose last update was not finished, since its run was killed meanwhile."""
FLAGS = (
    "vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs --worker-extension-cls "
    f"""rlcore_engines.vllm.engine_worker.Extension --weight-transfer-config '{{"backend": "{BACKEND}"}}'"""
)
"""How a server is started that a run can use, with VLLM_SERVER_DEV_MODE=1."""

log = get_logger("vllm")


class VLLMServer:
    """A server.

    Args:
        url: its address.
        headers: of every request.
        timeout_s: longest time for new weights.

    Attributes:
        has_started: called while the server is waited for; raises an error if it never will answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url, self.headers, self._timeout_s = url, dict(headers), timeout_s
        self.has_started: Callable[[], None] = lambda: None
        self.is_float32, self.device = True, "cpu"
        self.max_model_len = 0

    def __str__(self) -> str:
        return self.url

    def _call(self, method: str, path: str, body: object = None, *, timeout_s: float | None = None) -> Reply:
        """Send a request on a connection of its own.

        Raises:
            ServerUnavailable: there is no answer.
        """
        connection = Connection(self.url, self.headers)
        try:
            return connection.request(method, path, body, timeout_s=timeout_s or self._timeout_s)
        finally:
            connection.close()

    def _read(self, path: str, timeout_s: float = CONNECT_S) -> Any:
        """Return what a path answers.

        Raises:
            ServerUnavailable: there is no answer, or an error of the server.
            EngineError: the server does not have the path.
        """
        found = self._call("GET", path, timeout_s=timeout_s)
        if found.status >= 500:
            raise ServerUnavailable(f"{self.url}: {path}: {found.describe()}")
        if found.status != 200:
            raise EngineError(
                f"{self.url}: {path}: {found.describe()}; start the server with VLLM_SERVER_DEV_MODE=1 in its "
                f"environment, as {FLAGS}"
            )
        return found.json()

    def trouble(self) -> str:
        """Return why it does not answer that it is healthy; empty if it does."""
        try:
            found = self._call("GET", "/health", timeout_s=CONNECT_S)
        except ServerUnavailable as error:
            return str(error)
        return "" if found.status == 200 else f"/health: {found.describe()}"

    def version(self) -> str:
        """Return the version of its weights."""
        return str(self._read("/weight_info")["weight_version"])

    def wait(self, timeout_s: float) -> None:
        """Wait until it answers.

        Raises:
            EngineError: it does not within `timeout_s`, or never will.
        """
        begun, is_logged = time.monotonic(), False
        until = begun + timeout_s
        while trouble := self.trouble():
            self.has_started()
            if not is_logged and time.monotonic() - begun > PATIENCE_S:
                log.info("waiting for a vLLM server", at_most_s=timeout_s, because=trouble)
                is_logged = True
            if time.monotonic() > until:
                raise EngineError(
                    f"{self.url}: no vLLM server answers within {timeout_s:g} seconds; is it running? The last answer: "
                    f"{trouble}"
                )
            time.sleep(POLL_S)

    def check(self, *, sleeps: bool = False, folder: Path | None = None) -> None:
        """Check that it can be used in a run.

        Args:
            sleeps: whether the run lets it sleep.
            folder: that of the model with which the run has started it.

        Raises:
            ConfigError: an option that it needs is missing.
            EngineError: there is no answer, or that of another server.
        """
        try:  # the first answer takes as long as some programs that the server starts for it
            info = self._read("/server_info?config_format=json", self._timeout_s)["vllm_config"]
        except ServerUnavailable as error:
            raise EngineError(f"{error}; the server was started, and does not state its options") from error
        model, transfer = info["model_config"], info.get("weight_transfer_config") or {}
        if folder is not None and model.get("model", str(folder)) != str(folder):
            raise EngineError(
                f"{self.url}: a server of the model {model['model']} answers, and the run has started one of {folder}: "
                "another program has taken the port meanwhile; start the run again"
            )
        wrong = []
        if model.get("logprobs_mode") != "processed_logprobs":
            wrong.append(f"its log-probs are {model.get('logprobs_mode')}, not those it samples from")
        if transfer.get("backend") != BACKEND:
            wrong.append(f"its weight transfer is {transfer.get('backend')}, not {BACKEND}")
        if sleeps and not model.get("enable_sleep_mode"):
            wrong.append("it cannot sleep, as sampler.sleep asks (--enable-sleep-mode)")
        found = self._call("GET", PATH)
        if found.status == NO_KEY:
            raise ConfigError(
                f"{self.url}: {PATH}: {found.describe()}: it was started with a key (--api-key or VLLM_API_KEY): set "
                "sampler.headers to {Authorization: Bearer KEY}; files and messages of the run do not contain it"
            )
        if found.status != WRONG_METHOD:
            wrong.append(f"it has no {PATH} ({found.describe()})")
        if wrong:
            raise ConfigError(f"sampler.url = {self.url}: {'; '.join(wrong)}; start it with {FLAGS}")
        self.is_float32 = "float32" in str(model.get("dtype"))
        self.device = str((info.get("device_config") or {}).get("device_type", "cpu"))
        self.max_model_len = int(model.get("max_model_len") or 0)

    def num_workers(self) -> int:
        """Return the number of its processes that hold weights, or parts of them."""
        return int(self._read("/get_world_size")["world_size"])

    def init_transfer(self, info: Mapping[str, object]) -> Reply:
        """Prepare its workers for new weights; `info` has the fields of `engine_worker.Init`."""
        return self._step("/init_weight_transfer_engine", {"init_info": info})

    def update(self, info: Mapping[str, object]) -> Reply:
        """Let its workers receive new weights; `info` has the fields of `engine_worker.Update`."""
        return self._step("/update_weights", {"update_info": info})

    def load(self, version: str, update: Callable[[], object], *, continues: bool = False) -> None:
        """Replace the weights.

        Args:
            version: the name of the new ones.
            update: calls the method `update` of this server.
            continues: whether responses under way go on with the new weights, which then compute the states of the
                tokens before anew; otherwise there should be none.

        Raises:
            EngineError: the server cannot load them.
            ServerUnavailable: there is no answer.
        """
        self._step("/pause?mode=keep", None)
        if ALREADY in (found := self._call("POST", "/start_weight_update")).text:
            self._step("/finish_weight_update", {})  # of a run that was killed; the version stays as it is
            found = self._call("POST", "/start_weight_update")
        self._check_step(found, "/start_weight_update")
        update()
        self._step("/finish_weight_update", {"weight_version": version})
        renew = "/reset_prefix_cache?reset_running_requests=true"
        if continues and not self._step(renew, None).json().get("success", True):
            raise EngineError(f"{self.url}: {renew}: states of earlier weights could not be dropped")
        self._step("/resume", None)
        if not continues:
            self.forget_prefixes()

    def load_adapter(self, folder: str, version: str, name: str) -> None:
        """Load a LoRA adapter under `name`, in place of an earlier one."""
        self._step("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder, "load_inplace": True})
        self.forget_prefixes()
        self._step("/update_weight_version", {"new_version": version})

    def forget_prefixes(self) -> None:
        """Empty the cache of prompts, whose states are those of earlier weights.

        Raises:
            EngineError: it is still in use.
        """
        until = time.monotonic() + self._timeout_s
        while not self._step("/reset_prefix_cache", None).json().get("success", True):
            if time.monotonic() > until:
                raise EngineError(f"{self.url}: the prefix cache cannot be emptied: other requests are using it")
            time.sleep(POLL_S)

    def sleep(self) -> None:
        """Move the weights to the CPU's memory and forget all states, once no response is under way."""
        self._step("/sleep?level=1&mode=wait", None, what="it could not be put to sleep")

    def wake(self) -> None:
        """Move the weights back to the GPU; what was cached of prompts was forgotten when it went to sleep."""
        self._step("/wake_up", None, what="it could not be woken up")

    def is_asleep(self) -> bool:
        """Return whether it sleeps."""
        return bool(self._read("/is_sleeping")["is_sleeping"])

    def _step(self, path: str, body: object, *, what: str = "new weights could not be loaded") -> Reply:
        return self._check_step(self._call("POST", path, body), path, what=what)

    def _check_step(self, found: Reply, path: str, *, what: str = "new weights could not be loaded") -> Reply:
        if found.status != 200:
            raise EngineError(f"{self.url}: {what}: {path}: {found.describe()}")
        return found
