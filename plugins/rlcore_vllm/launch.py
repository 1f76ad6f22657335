"""What a server is started with: the policy's folder, precision, context and adapter, and a free port."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlcore.logging import get_logger
from rlcore_vllm.client import VLLMServer
from rlcore_vllm.config import VLLMConfig
from rlcore_vllm.own_server import OwnServer

MOST_SEQUENCES = 1024
"""vLLM's own number of sequences at a time on large GPUs; more need memory beyond their states."""
log = get_logger("vllm")


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
