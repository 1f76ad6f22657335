"""The servers of a run: connected or started once, and given the policy's weights whenever these have changed.

Also in this file: weights sent to the workers of servers without files (`sampler.transfer: broadcast`).
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.profiling import phase
from rlcore.protocols import Policy
from rlcore_engines.pool import begin
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError, Reply, ServerUnavailable
from rlcore_engines.vllm.own_server import OwnServer, free_port, make_own_server
from rlcore_engines.vllm.weight_group import WeightGroup, address_towards, all_join, open_store, pack, plan
from rlcore_engines.vllm.weights import ADAPTER, WeightFiles, check_policy, is_float32, write_folder

if TYPE_CHECKING:
    from rlcore.training import Run

BROADCAST_POLL_S = 0.001
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
            time.sleep(BROADCAST_POLL_S)

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


POLL_S = 0.2
log = get_logger("vllm")


class Fleet:
    """The servers.

    Args:
        config: the options.

    Attributes:
        servers: those that have the policy's present weights.
        version: name of the policy's present weights, which the servers have.
        num_loads: how often a server has loaded weights.
        is_main: whether this process starts servers and sends weights; the others wait for it.
    """

    def __init__(self, config: VLLMConfig) -> None:
        self.config, self.version, self.is_main, self.num_loads = config, "", True, 0
        self.servers: list[VLLMServer] = []
        self._known: list[VLLMServer] = []
        self._token, self._port = secrets.token_hex(4), 0
        self._own: OwnServer | None = None
        self._policies, self._num_processes = 0, 1
        self._lock, self._is_asleep = threading.Lock(), False
        self._files = make_transfer(config)
        self._log_file: Path | None = None
        self._policy: weakref.ref[Any] | None = None

    def open(self, run: Run) -> None:
        """Take the folder of a run, and what all of its processes must agree on; check servers that run already."""
        ranks = run.ranks
        self.is_main, self._num_processes = ranks.is_main, ranks.world
        self._token, self._port = ranks.broadcast((self._token, free_port() if self.config.python else 0))
        self._files.use(run.dir)
        self._log_file = run.dir / "vllm.log"
        if not self.config.python:
            ranks.on_main(self._connect)
            self._connect()

    @property
    def model(self) -> str | None:
        """Name of the model to ask for; None if a server has one only."""
        return ADAPTER if self.config.lora == "adapter" else None

    def _make_server(self, url: str) -> VLLMServer:
        return VLLMServer(url, self.config.headers, self.config.start_timeout_s)

    def _connect(self) -> None:
        """Check servers that run already."""
        if not self._known:
            servers = [self._make_server(url) for url in self.config.urls]
            for server in servers:
                server.wait(self.config.start_timeout_s if self.is_main else POLL_S)
                server.check(sleeps=self.config.sleep)
                if self.is_main and _sleeps(server):  # a run that was killed has left it so
                    server.wake()
            self._known = servers

    def rest(self) -> None:
        """Put the servers to sleep until the next call of `renew`; one that cannot sleep stays awake."""
        if self._is_asleep:
            return
        self._is_asleep = True
        for server in self.servers if self.is_main else ():
            try:
                server.sleep()
            except (EngineError, ServerUnavailable) as error:
                log.warning("a server stays awake", error=str(error)[:300])

    def _wake(self) -> None:
        """Wake the servers; the other processes wait until process 0 has done it.

        Raises:
            EngineError: one does not wake up in time.
        """
        until = time.monotonic() + self.config.start_timeout_s
        for server in self.servers:
            if self.is_main:
                with suppress(ServerUnavailable):  # it is started again, or left out, where it is asked
                    server.wake()
            while not self.is_main and _sleeps(server):
                if time.monotonic() > until:
                    raise EngineError(f"{server}: still sleeps; see the errors of process 0")
                time.sleep(POLL_S)
        self._is_asleep = False

    def renew(self, policy: Policy) -> None:
        """Give every server the policy's present weights, if they have changed; collective then.

        Raises:
            ConfigError: the policy cannot be served.
            EngineError: a server cannot be started, or cannot load them.
        """
        if self._policy is None or self._policy() is not policy:
            check_policy(policy)
            self._end_own()  # it has the architecture of another policy
            self._policies, self._policy = self._policies + 1, weakref.ref(policy)
            self.version = ""
        if self._is_asleep:
            self._wake()
        version = f"{self._token}-{self._policies}-{policy.version}"
        if version == self.version and self.servers:
            return
        begun = time.perf_counter()
        with phase("weights"):
            self._renew(policy, version)
        log.debug("servers have new weights", version=version, seconds=round(time.perf_counter() - begun, 3))

    def _renew(self, policy: Policy, version: str) -> None:
        with self._lock:
            self._files.write(policy, self._policies, here=self.is_main)
            self.version = version
        if self.is_main:
            if not self._known:
                self._begin(policy)
            self.servers = self._give_all()
            return
        if not self._known:
            self._known = [self._make_server(f"http://127.0.0.1:{self._port}")]
        self.servers = self._await_all()

    def _give_all(self) -> list[VLLMServer]:
        """Give every server the present weights, and return those that have them; wait for one if there is none.

        Raises:
            EngineError: there is none in time, or one cannot load them.
        """
        until, reached = time.monotonic() + self.config.start_timeout_s, list[VLLMServer]()
        while True:
            failures = list[ServerUnavailable]()
            for server in self._known:
                try:
                    self._give(server)
                    reached.append(server)
                except ServerUnavailable as error:
                    failures.append(error)
            if reached:
                for each in failures:
                    log.warning("a server is left out until the weights change again", error=str(each)[:300])
                return reached
            if time.monotonic() > until:
                raise EngineError(f"no server answers to load new weights: {failures[0]}") from failures[0]
            time.sleep(POLL_S)

    def _await_all(self) -> list[VLLMServer]:
        """Wait until process 0 has given servers the present weights, and return them, without those that are gone.

        Raises:
            EngineError: there is none in time.
        """
        until = time.monotonic() + self.config.start_timeout_s
        while time.monotonic() < until:
            versions = [_version_of(server) for server in self._known]
            if self.version in versions and set(versions) <= {self.version, None}:
                return [server for server, version in zip(self._known, versions, strict=True) if version]
            time.sleep(POLL_S)
        raise EngineError(
            f"no server has weights of version {self.version} within sampler.start_timeout_s = "
            f"{self.config.start_timeout_s:g} seconds: {', '.join(map(str, self._known))}; see the errors of process 0"
        )

    def _begin(self, policy: Policy) -> None:
        """Connect to running servers, or start one."""
        if not self.config.python:
            self._connect()
            return
        server = self._make_server(f"http://127.0.0.1:{self._port or free_port()}")
        self._own = make_own_server(
            self.config, policy, server, place=self._files.place, log_file=self._log_path(),
            num_processes=self._num_processes, on_restart=lambda: self._load(server),
        )  # fmt: skip
        self._own.start()
        server.check(sleeps=self.config.sleep, folder=self._files.place / "model")
        self._known = [server]

    def _log_path(self) -> Path:
        return self._log_file or Path(self.config.weights_dir or self._files.place) / "vllm.log"

    def _load(self, server: VLLMServer) -> None:
        """Let a server load the weights that were written, or copied, last."""
        with self._lock:
            self._files.load(server, self.version)
            self.num_loads += 1

    def _give(self, server: VLLMServer) -> None:
        """Give a server the present weights; one that dies meanwhile, and is started again, is waited for."""
        try:
            self._load(server)
        except (ServerUnavailable, EngineError):
            if self._own is None or not self._own.is_dying():
                raise
            self.recover(server)

    def recover(self, server: VLLMServer) -> None:
        """Wait until a server answers and has the present weights; one that was started elsewhere is given them.

        Raises:
            EngineError: it does not in time, or never will.
        """
        until = time.monotonic() + self.config.start_timeout_s
        while True:
            if self._own is not None and self._own.failure is not None:
                raise self._own.failure
            version = _version_of(server)
            if version == self.version:
                return
            if version and self.is_main and self._own is None:
                self._load(server)
                return
            if time.monotonic() > until:
                raise EngineError(
                    f"{server}: no answer with weights of version {self.version} within sampler.start_timeout_s = "
                    f"{self.config.start_timeout_s:g} seconds" + (f"; it has {version}" if version else "")
                )
            time.sleep(POLL_S)

    def check_room(self, longest: int) -> None:
        """Check that prompts and continuations fit into the servers' contexts.

        Raises:
            ConfigError: they do not.
        """
        for server in self.servers:
            if 0 < server.max_model_len < longest:
                raise ConfigError(
                    f"{server}: its context (--max-model-len) has {server.max_model_len} tokens, and a prompt with "
                    f"its new tokens has {longest}; start it with a longer one, or lower gen.max_new_tokens"
                )

    def tolerance(self, policy: object, *, is_full_precision: bool) -> float:
        """Return the largest difference of log-probs between a server and the policy."""
        if self.config.tolerance is not None:
            return self.config.tolerance
        exact = is_full_precision and is_float32(policy) and all(server.is_float32 for server in self.servers)
        return 1e-3 if exact else 0.5

    def _end_own(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own, self._known = None, []

    def close(self) -> None:
        """End a server that was started, and delete the files of weights; a later `renew` starts anew."""
        self._end_own()
        self.servers, self._known, self.version, self._policy = [], [], "", None
        self._files.close(here=self.is_main)


def _sleeps(server: VLLMServer) -> bool:
    """Return whether a server answers that it sleeps."""
    try:
        return server.is_asleep()
    except ServerUnavailable:
        return False


def _version_of(server: VLLMServer) -> str | None:
    """Return the version of a server's weights; None if it does not answer."""
    try:
        return server.version()
    except ServerUnavailable:
        return None
