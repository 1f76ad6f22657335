"""Weights sent to the workers of servers without files (`sampler.transfer: broadcast`)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from rlcore_engines.pool import begin
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError, Reply, ServerUnavailable
from rlcore_engines.vllm.weight_group import WeightGroup, address_towards, all_join, open_store, pack, plan
from rlcore_engines.vllm.weights import WeightFiles, write_folder

POLL_S = 0.001
FAILURE_S = 5.0
"""How long the reply of a server is waited for after a broadcast to it has failed."""


class WeightBroadcast(WeightFiles):
    """A copy of the policy's weights in the memory of process 0, which sends them to one server after another.

    Each server has a group of its own with process 0, so that one that fails delays no other, and one that was started
    again joins a new one. It receives the weights of the copy, whatever the policy has learned since. The folder has
    the model's configuration alone.

    Args:
        continues: whether responses under way go on with new weights.
        shares_gpu: whether servers may use the GPU of the policy, which NCCL refuses.
        timeout_s: longest time for the weights.
    """

    def __init__(self, shared: str | None, *, continues: bool, shares_gpu: bool, timeout_s: float) -> None:
        super().__init__(shared, has_adapter=False, continues=continues)
        self._shares_gpu, self._timeout_s = shares_gpu, timeout_s
        self._weights: dict[str, Tensor] = {}
        self._device = torch.device("cpu")
        self._store: TCPStore | None = None
        self._groups: dict[str, WeightGroup] = {}

    def write(self, policy: Any, number: int, *, here: bool) -> None:
        """Copy the weights; collective. The folder is written for each new policy."""
        names, weights = set[str](), policy.weights()
        try:
            for name, value in weights if here else ():
                self._copy(name, value.detach())
                names.add(name)
        finally:
            for _ in weights:  # the other processes gather until the end
                pass
        self._weights = {name: value for name, value in self._weights.items() if name in names}
        self._device = policy.device
        if here and self._written != number:
            write_folder(policy, self.place / "model", names)
        self._written = number

    def _copy(self, name: str, value: Tensor) -> None:
        known = self._weights.get(name)
        if known is None or (known.shape, known.dtype) != (value.shape, value.dtype):
            self._weights[name] = torch.empty(value.shape, dtype=value.dtype)
        self._weights[name].copy_(value)

    def load(self, server: VLLMServer, version: str) -> None:
        """Send the weights that were copied last."""
        group = self._member(server)
        try:
            server.load(version, lambda: self._send(server, group), continues=self._continues)
        except BaseException:
            self._groups.pop(server.url).close()
            raise

    def _member(self, server: VLLMServer) -> WeightGroup:
        """Return the group with a server, which joins a new one if it has none or was started again."""
        known = self._groups.get(server.url)
        if known is not None:
            try:
                server.init_transfer({"group": known.name, "is_new": False})
            except (EngineError, ServerUnavailable):
                self._groups.pop(server.url).close()
            else:
                return known
        self._groups[server.url] = group = self._join(server)
        return group

    def _join(self, server: VLLMServer) -> WeightGroup:
        self._store = self._store or open_store(self._timeout_s)
        parts, name, size = urlsplit(server.url), secrets.token_hex(8), 1 + server.num_workers()
        has_gpus = self._device.type == "cuda" and server.device == "cuda"
        address = address_towards(parts.hostname or "", parts.port or 80)
        shape: dict[str, Any] = {
            "size": size, "backend": "nccl" if has_gpus and not self._shares_gpu else "gloo",
            "timeout_s": self._timeout_s,
        }  # fmt: skip
        joining = {"group": name, "is_new": True, "host": address, "port": self._store.port, **shape}
        reply = begin(lambda: server.init_transfer(joining))
        store = self._store
        self._wait(lambda: all_join(store, name, size), reply, server)
        with torch.cuda.device(self._device) if has_gpus else nullcontext():
            group = WeightGroup(store, name, rank=0, address=address, **shape)
        reply.result()
        return group

    def _send(self, server: VLLMServer, group: WeightGroup) -> None:
        buckets = plan(self._weights)
        group.begin_update()
        reply = begin(lambda: server.update({"buckets": buckets}))
        self._wait(group.are_ready, reply, server)
        for bucket in buckets:
            buffer = pack(bucket, self._weights, group.device)
            try:
                work = group.broadcast(buffer)
                self._wait(work.is_completed, reply, server)
                work.wait()
            except EngineError:
                raise
            except RuntimeError as error:
                with suppress(TimeoutError):
                    reply.result(FAILURE_S)  # raises what the server states of the cause, if it still can
                raise ServerUnavailable(f"{server}: new weights did not reach it: {error}") from error
        reply.result()

    def _wait(self, is_done: Callable[[], bool], reply: Future[Reply], server: VLLMServer) -> None:
        """Wait for the workers of a server, as long as its reply states no error."""
        until = time.monotonic() + self._timeout_s
        while not is_done():
            if reply.done():
                reply.result()
            if time.monotonic() > until:
                raise EngineError(f"{server}: no new weights within {self._timeout_s:g} seconds")
            time.sleep(POLL_S)

    def close(self, *, here: bool) -> None:
        """Leave the groups, forget the copy and delete the folder."""
        for group in self._groups.values():
            group.close()
        self._groups, self._weights, self._store = {}, {}, None
        super().close(here=here)


def make_transfer(config: VLLMConfig) -> WeightFiles:
    """Return the way by which weights reach the servers."""
    if config.transfer == "broadcast":
        return WeightBroadcast(
            config.weights_dir, continues=config.continue_responses, shares_gpu=config.sleep,
            timeout_s=config.start_timeout_s,
        )  # fmt: skip
    return WeightFiles(config.weights_dir, has_adapter=config.lora == "adapter", continues=config.continue_responses)
