"""The part of rlcore-vllm that runs in the processes of vLLM: it loads new weights from files.

It imports safetensors and vLLM, and nothing of rlcore: vLLM may be installed in an environment of its own, where
this file can also stand alone. vLLM imports it because of `--worker-extension-cls MODULE.Extension`; it then registers
the weight-transfer engine that `--weight-transfer-config '{"backend": "rlcore_file"}'` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "rlcore_file"


class Extension:
    """The class that vLLM adds to its workers; it has no methods, since the import of its module is what is needed."""


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed here
    """Nothing: files need no connection."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]  # the same
    """Where the new weights are.

    Attributes:
        path: folder of safetensors files, with the names of transformers, which this process can read.
    """

    path: str


class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):  # type: ignore[misc]  # the same
    """Replaces all weights of a model by those of files.

    vLLM's CPU backend multiplies with packed copies of the weights. Layers that load weights are packed anew; a head
    that is tied to the embedding loads none, and would keep its old copy, so that it is packed here.
    """

    init_info_cls = FileInit
    update_info_cls = FileUpdate
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Do nothing: files need no connection."""

    def start_weight_update(self) -> None:
        """Prepare the layers for new weights."""
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Load the weights of the files, one at a time.

        Raises:
            ValueError: the files lack weights of the model, or have others.
        """
        names: list[str] = []

        def weights() -> Iterator[tuple[str, Any]]:
            for path in sorted(Path(update_info.path).glob("*.safetensors")):
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in file.keys():  # noqa: SIM118  not a dict
                        names.append(name)
                        yield name, file.get_tensor(name)

        loaded = self.model.load_weights(weights())
        missing = sorted(self._expected - set(loaded)) if loaded is not None else []
        if missing:
            raise ValueError(
                f"{update_info.path} has no weights for {missing[:3]} ({len(missing)} of {len(self._expected)} "
                f"parameters): it has {names[:3]} and {len(names)} in all; the server has another model than the policy"
            )

    def finish_weight_update(self) -> None:
        """Put the new weights in place, and pack the heads anew."""
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            if isinstance(layer, VocabParallelEmbedding) and isinstance(layer.quant_method, UnquantizedEmbeddingMethod):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Do nothing: nothing is open between two updates."""


def register() -> None:
    """Register the engine; once, since vLLM imports the module in several ways."""
    registry: dict[str, Any] = WeightTransferEngineFactory._registry  # noqa: SLF001  it has no way to ask
    if BACKEND not in registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)


register()
