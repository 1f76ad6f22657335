"""Files of a model's weights under the names that the libraries of Hugging Face read: one, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from rlcore.sharding.parallel_files import SUFFIX
from rlcore.sharding.tensor_file import TensorFile

SINGLE, INDEX, PARTS = "model.safetensors", "model.safetensors.index.json", f"model{SUFFIX}"
LARGEST = "50GB"
"""Size from which the weights are written to several files; the default of `transformers`."""


def write_weights(folder: Path, layout: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write the weights of a model to one file, or to several with an index.

    Args:
        folder: the folder.
        layout: name → a tensor of the shape and dtype of a weight.
        weights: the name and value of each.
    """
    plan = split_torch_state_dict_into_shards(
        dict(layout), filename_pattern="model{suffix}.safetensors", max_shard_size=LARGEST
    )
    with ExitStack() as stack:
        files = {
            file: stack.enter_context(
                TensorFile(folder / file, {name: layout[name] for name in held}, {"format": "pt"})
            )
            for file, held in plan.filename_to_tensors.items()
        }
        for name, whole in weights:
            files[plan.tensor_to_filename[name]].write(name, whole)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
