"""A server that the run starts: it is watched, started again when it dies, and ended with the run.

Also in this file: what a server is started with: the policy's folder, precision, context and adapter, and a free
port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

from rlcore import child
from rlcore.child import ChildProcess, tail
from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore_engines.vllm.client import BACKEND, VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError

log = get_logger("vllm")


HERE = Path(__file__).parent
WORKER = ("__init__.py", "engine_worker.py", "weight_group.py")
"""The part of this package that vLLM imports, copied to a folder of its own."""
OURS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTHONPATH",
    "PYTHONHOME",
)
PREFIXES = ("TORCHELASTIC_", "ACCELERATE_", "FSDP_", "GROUP_", "ROLE_")
"""Variables of this process's own launcher and environment, which a server must not see."""
TAIL = 1500
NOTICE_S = 3.0
"""Longest time in which the end of a process is noticed."""


class OwnServer:
    """A process `vllm serve`.

    Args:
        server: its address.
        python: the interpreter of its environment.
        folder: the model's folder.
        log_file: its output.
        arguments: further arguments of `vllm serve`.
        env: further environment variables.
        restarts: most times that it is started again.
        timeout_s: longest time until it answers.
        on_restart: called when it has been started again and answers.
    """

    def __init__(
        self,
        server: VLLMServer,
        *,
        python: str,
        folder: Path,
        log_file: Path,
        arguments: Sequence[str],
        env: Mapping[str, str],
        restarts: int,
        timeout_s: float,
        on_restart: Callable[[], None],
    ) -> None:
        self.server, self._folder, self.log_file, self._timeout_s = server, folder, log_file, timeout_s
        self._command = self._make_command(python, arguments)
        self._env, self._on_restart = self._make_env(env), on_restart
        self.restarts_left, self._lock = restarts, threading.Lock()
        self._process: ChildProcess | None = None
        self._is_closing = threading.Event()
        self.is_ready = threading.Event()
        self.failure: EngineError | None = None
        server.has_started = self._check

    def _make_command(self, python: str, arguments: Sequence[str]) -> list[str]:
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        return [
            python, "-m", "vllm.entrypoints.cli.main", "serve", str(self._folder), "--host", host, "--port", port,
            "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-prefix-caching",
            "--generation-config", "vllm", "--disable-uvicorn-access-log",
            "--worker-extension-cls", "rlcore_engines.vllm.engine_worker.Extension",
            "--weight-transfer-config", f'{{"backend": "{BACKEND}"}}', *arguments,
        ]  # fmt: skip

    def _make_env(self, env: Mapping[str, str]) -> dict[str, str]:
        side = self._folder.parent / "worker"
        (side / "rlcore_engines" / "vllm").mkdir(parents=True, exist_ok=True)
        for name in WORKER:
            shutil.copyfile(HERE / name, side / "rlcore_engines" / "vllm" / name)
        kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith(PREFIXES)}
        path = os.pathsep.join(filter(None, (str(side), env.get("PYTHONPATH"))))
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "PYTHONPATH": path}
        return {**kept, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **env, **own}

    def start(self) -> None:
        """Start the process, wait until it answers, and watch it from then on.

        Raises:
            ConfigError: the interpreter cannot be started.
            EngineError: the server ends, or does not answer in time.
        """
        self._spawn()
        self.server.wait(self._timeout_s)
        self.is_ready.set()
        threading.Thread(target=self._watch, name="rlcore-vllm-watch", daemon=True).start()

    def _spawn(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", child.__file__, str(self.log_file), *self._command]
        if shutil.which(self._command[0]) is None:
            raise ConfigError(f"sampler.python = {self._command[0]!r}: is no program that can be started")
        with self._lock:
            self._check()
            self._process = ChildProcess(command, stdin=PIPE, env=self._env, cwd=self._folder)

    def _watch(self) -> None:
        """Start the server again when it dies, until it may not be started again or is closed."""
        while (process := self._process) is not None:
            code = process.wait()
            self.is_ready.clear()
            if self._is_closing.is_set():
                return
            if self.restarts_left <= 0:
                self.failure = EngineError(
                    f"the vLLM server ended with code {code}, and sampler.restarts is used up: {self._last_output()}"
                )
                return
            self.restarts_left -= 1
            log.warning("the vLLM server has ended and is started again", code=code, restarts_left=self.restarts_left)
            try:
                self._process = None
                self._spawn()
                self.server.wait(self._timeout_s)
                self._on_restart()
                self.is_ready.set()
            except Exception as error:  # noqa: BLE001  raised where completions are asked for
                if not self._ends_again():
                    self.failure = error if isinstance(error, EngineError) else EngineError(str(error))
                    return

    def _ends_again(self) -> bool:
        """Return whether the process that was started again has ended, or does so within the next seconds."""
        if self._process is None:
            return False
        try:
            return self._process.wait(NOTICE_S) is not None
        except subprocess.TimeoutExpired:
            return False

    def is_dying(self) -> bool:
        """Return whether the process has ended, or is being started again, and may come back."""
        until = time.monotonic() + NOTICE_S
        while self.is_ready.is_set() and not self._is_closing.is_set() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.is_ready.is_set()

    def _check(self) -> None:
        """Raise an error if the server is closed, or its process has ended."""
        if self._is_closing.is_set():
            raise EngineError("the vLLM server is closed")
        if self._process is not None and (code := self._process.poll()) is not None:
            raise EngineError(f"the vLLM server ended with code {code} before it answered: {self._last_output()}")

    def _last_output(self) -> str:
        try:
            with self.log_file.open("rb") as file:
                text = tail(file, 200_000)
        except OSError:
            return f"see {self.log_file}"
        lines = [line for line in text.splitlines() if "Error" in line] or text.splitlines()[-3:]
        return f"{' | '.join(lines[-3:])[-TAIL:]} (all of its output: {self.log_file})"

    def close(self) -> None:
        """End the process; it ends by itself if this process is killed."""
        with self._lock:
            self._is_closing.set()
            process, self._process = self._process, None
        self.is_ready.clear()
        if process is not None:
            assert process.stdin is not None  # noqa: S101  it is a pipe
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.end()


MOST_SEQUENCES = 1024
"""vLLM's own number of sequences at a time on large GPUs; more need memory beyond their states."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def make_own_server(
    config: VLLMConfig,
    policy: Any,
    server: VLLMServer,
    *,
    place: Path,
    log_file: Path,
    num_processes: int,
    on_restart: Callable[[], None],
) -> OwnServer:
    """Return a server that is not started yet.

    Args:
        config: the options.
        policy: the policy whose weights it serves.
        server: its address.
        place: folder of the policy's files; the model is in `model`.
        log_file: file of its output.
        num_processes: number of processes that send requests.
        on_restart: called when it has been started again and answers.
    """
    dtype = config.dtype or str(next(policy.model.parameters()).dtype).removeprefix("torch.")
    arguments = ["--dtype", dtype, "--max-model-len", "auto"]  # the model's context, or as much as fits in memory
    if config.transfer == "broadcast":
        arguments += ["--load-format", "dummy"]  # its folder has no weights
    if config.lora == "adapter":
        rank = max((each.r for each in policy.model.peft_config.values()), default=16)
        arguments += ["--enable-lora", "--max-lora-rank", str(_lora_rank(rank))]
    if config.continue_responses:  # the check of new weights is not to wait until responses under way end
        num_requests = num_processes * (config.concurrency + 2 * config.check_rows)
        arguments += ["--max-num-seqs", str(min(num_requests, MOST_SEQUENCES))]
    if config.sleep:
        arguments.append("--enable-sleep-mode")
    log.info("starting a vLLM server", url=server.url, log=str(log_file))
    return OwnServer(
        server, python=str(Path(str(config.python)).expanduser()), folder=place / "model", log_file=log_file,
        arguments=[*arguments, *config.args], env=config.env, restarts=config.restarts,
        timeout_s=config.start_timeout_s, on_restart=on_restart,
    )  # fmt: skip


def _lora_rank(rank: int) -> int:
    """Return the smallest rank that vLLM allows and that is large enough."""
    return next((each for each in (1, 8, 16, 32, 64, 128, 256, 320, 512) if each >= rank), rank)
