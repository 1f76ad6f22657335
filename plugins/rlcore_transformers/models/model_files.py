"""Files of a model's weights, as `transformers` writes them, written and read one whole tensor at a time.

In a checkpoint whose tensors the processes of a run wrote in parallel, a folder takes the place of the file
(`rlcore.sharding.tensor_file`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from rlcore.errors import CheckpointError
from rlcore.sharding.tensor_file import INDEX, PARTS, SINGLE, saved_parts, write_weights
from rlcore_transformers.models.hub import quiet_transformers
from rlcore_transformers.models.weights import check_same_form


def file_layout(model: PreTrainedModel, shapes: Mapping[int, torch.Size]) -> dict[str, Tensor] | None:
    """Return name → a tensor without values of the weights in the model's file; tied ones occur once.

    Args:
        model: the model, whose parameters may be empty.
        shapes: identity of a parameter → its shape when it is complete.

    Returns:
        None if `transformers` saves the weights under other names or in other shapes, as it does those of experts.
    """
    own = model.state_dict(keep_vars=True)
    ignored = model._keys_to_ignore_on_save or ()  # noqa: SLF001
    layout = {
        name: torch.empty(shapes.get(id(each), each.shape), dtype=each.dtype, device="meta")
        for name, each in own.items()
        if name not in ignored
    }
    layout = remove_tied_weights_from_state_dict(layout, model)
    try:
        saved = revert_weight_conversion(model, dict(layout))
    except (RuntimeError, NotImplementedError, ValueError):  # a conversion that needs values
        return None
    same = saved.keys() == layout.keys() and all(saved[name].shape == each.shape for name, each in layout.items())
    return layout if same else None


def write_model(
    folder: Path, model: PreTrainedModel, layout: Mapping[str, Tensor], weights: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Write a model's configuration and weights, which `from_pretrained` loads.

    Args:
        folder: the folder, which is made.
        model: the model, whose parameters may be empty.
        layout: the result of `file_layout`; if it is empty, no file of weights is written.
        weights: each parameter and the whole tensor to write in its place; others may be among them.
    """
    with quiet_transformers():
        model.save_pretrained(folder, state_dict={})  # the configuration, and the code of a model with its own
    (folder / SINGLE).unlink(missing_ok=True)
    own = model.state_dict(keep_vars=True)
    names = {id(own[name]): name for name in layout}
    parameters = {id(each) for each in model.parameters()}
    buffers = ((own[name], own[name]) for name in layout if id(own[name]) not in parameters)
    named = ((names.get(id(each)), whole) for source in (buffers, weights) for each, whole in source)
    write_weights(folder, layout, ((name, whole) for name, whole in named if name is not None))


def read_model(folder: Path, model: PreTrainedModel, layout: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Any]]:
    """Yield each parameter and buffer of a model and its saved values, as a slice of a file that is read when indexed.

    Raises:
        CheckpointError: the files cannot be read, or contain another model.
    """
    own = model.state_dict(keep_vars=True)
    if parts := saved_parts(folder / PARTS):
        found = {name: torch.empty(each.shape, device="meta") for name, each in parts.items()}
        check_same_form(folder, "weights", layout, found)
        yield from ((own[name], each) for name, each in parts.items())
        return
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(folder / file, framework="pt")) for file in _weight_files(folder)]
            held = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  not a dict
            found = {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name, file in held.items()}
            check_same_form(folder, "weights", layout, found)
            for name, file in held.items():
                yield own[name], file.get_slice(name) if layout[name].dim() else file.get_tensor(name)
    except CheckpointError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be read: {error}") from error


def _weight_files(folder: Path) -> list[str]:
    if (folder / SINGLE).exists():
        return [SINGLE]
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return sorted(set(index["weight_map"].values()))
