"""The part of rlcore-engines that runs in the processes of vLLM: it loads new weights, from files or from a broadcast.

It imports safetensors, torch and vLLM, and nothing of rlcore: vLLM may be installed in an environment of its own, where
this file can also stand alone with `weight_group`. vLLM imports it because of `--worker-extension-cls
rlcore_engines.vllm.engine_worker.Extension`; it then registers the engine of transfers that `--weight-transfer-config
'{"backend": "rlcore"}'` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch._C._distributed_c10d import TCPStore
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rlcore_engines.vllm.weight_group import Entry, WeightGroup, address_towards, joins

BACKEND = "rlcore"


class Extension:
    """The class that vLLM adds to its workers; it has no methods, since the import of its module is what is needed."""


@dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed here
    """The process group through which weights arrive; files need none.

    Attributes:
        group: its name; empty for files.
        is_new: whether it is to be joined; it must have been otherwise.
        host: address of the store in which its members find one another.
        port: its port.
        size: number of members, the run and the workers of this server.
        backend: `nccl` or `gloo`.
        timeout_s: longest time to join, and for a bucket.
    """

    group: str = ""
    is_new: bool = True
    host: str = ""
    port: int = 0
    size: int = 0
    backend: str = "gloo"
    timeout_s: float = 0.0


@dataclass
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]  # the same
    """Where the new weights are: in files, or in the next buckets of the group.

    Attributes:
        path: folder of safetensors files, with the names of transformers, which this process can read.
        buckets: tensors in the order in which they are broadcast.
    """

    path: str = ""
    buckets: list[list[Entry]] = field(default_factory=list)


class Engine(WeightTransferEngine[Init, Update]):  # type: ignore[misc]  # the same
    """Replaces all weights of a model by those of files, or by those that the run broadcasts.

    vLLM's CPU backend multiplies with packed copies of the weights. Layers that load weights are packed anew; a head
    that is tied to the embedding loads none, and would keep its old copy, so that it is packed here.
    """

    init_info_cls = Init
    update_info_cls = Update
    supports_draft_weight_update = False
    _group: WeightGroup | None = None

    def init_transfer_engine(self, init_info: Init) -> None:
        """Join the group of the run, if weights are broadcast.

        Raises:
            ValueError: this process should be in the group, and is not: it was started again.
        """
        if not init_info.group:
            return
        if not init_info.is_new:
            if self._group is None or self._group.name != init_info.group:
                raise ValueError(f"this server is not in the group {init_info.group!r}")
            return
        self.shutdown()
        config, (host, port) = self.parallel_config, (init_info.host, init_info.port)
        rank = 1 + config.data_parallel_index * config.world_size + config.rank
        store = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=init_info.timeout_s))
        joins(store, init_info.group, rank)
        self._group = WeightGroup(
            store, init_info.group, rank=rank, size=init_info.size, backend=init_info.backend,
            timeout_s=init_info.timeout_s, address=address_towards(host, port),
        )  # fmt: skip

    def start_weight_update(self) -> None:
        """Prepare the layers for new weights, after an update that failed or was not finished has been put away.

        vLLM counts its weights as a part of the next ones otherwise, and ends these with an error.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Load the weights, one at a time.

        Raises:
            ValueError: weights of the model are missing, or there are others, or this process is in no group.
        """
        names: list[str] = []

        def weights() -> Iterator[tuple[str, Any]]:
            for name, value in self._weights(update_info):
                names.append(name)
                yield name, value

        try:
            loaded = self.model.load_weights(weights())
        except BaseException:
            self.shutdown()  # the run's broadcast fails then, and would wait for this process otherwise
            raise
        received = self._expected if loaded is None and names else set(loaded or ())
        missing = sorted(self._expected - received)
        if missing:
            raise ValueError(
                f"{update_info.path or 'the broadcast'} has no weights for {missing[:3]} ({len(missing)} of "
                f"{len(self._expected)} parameters): it has {names[:3]} and {len(names)} in all; the server has "
                "another model than the policy"
            )

    def _weights(self, update_info: Update) -> Iterator[tuple[str, Any]]:
        if update_info.buckets:
            if self._group is None:
                raise ValueError("this server is in no group that weights are broadcast to")
            yield from self._group.receive(update_info.buckets)
        for path in sorted(Path(update_info.path).glob("*.safetensors")) if update_info.path else ():
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118  not a dict
                    yield name, file.get_tensor(name)

    def finish_weight_update(self) -> None:
        """Put the new weights in place, and pack the heads anew."""
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            if isinstance(layer, VocabParallelEmbedding) and isinstance(layer.quant_method, UnquantizedEmbeddingMethod):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
            self._group = None


def register() -> None:
    """Register the engine; once, since vLLM imports the module in several ways."""
    registry: dict[str, object] = WeightTransferEngineFactory._registry  # noqa: SLF001  it has no way to ask
    if BACKEND not in registry:
        WeightTransferEngineFactory.register_engine(BACKEND, Engine)


register()
