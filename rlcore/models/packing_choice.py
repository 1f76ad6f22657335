"""Find out whether a model's attention may run packed, and switch it if so."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from rlcore.log import get_logger
from rlcore.models.blocks import vocabulary_size
from rlcore.models.packing import PACKED, PackingRefused, pack, padded_inputs
from rlcore.models.quiet import quiet_transformers


def longest_packed(model: PreTrainedModel) -> int:
    """Switch `model` (with a head or without) to packed attention where that is exact.

    The model proves it on a small batch: as many attention calls as layers, and the result of an ordinary pass.

    Returns:
        Tokens of the longest sequence that may be packed; 0 where the family does not allow packing, which is logged,
        and the model is left as it was.
    """
    before = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    limit = min(_windows(model), default=2**31)
    training = model.training
    model.eval()
    try:
        if before not in ("sdpa", PACKED):
            raise PackingRefused(f"its attention is {before!r}, not 'sdpa'")
        if limit < 3:
            raise PackingRefused(f"its attention window is of {limit} tokens")
        _run_packed(model)
    except (PackingRefused, TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        _attend_with(model, before)
        reason = str(error) if isinstance(error, PackingRefused) else f"{type(error).__name__}: {error}"
        get_logger("rlcore.models").info("padding is computed along", model=type(model).__name__, reason=reason)
        return 0
    finally:
        model.train(training)
    return limit


@torch.no_grad()
def _run_packed(model: PreTrainedModel) -> None:
    """Switch `model` to packed attention.

    Raises:
        PackingRefused: it then says something else.
    """
    tokens = (torch.arange(8, device=model.device).reshape(2, 4) * 7 + 1) % vocabulary_size(model)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]], device=model.device)
    expected = model(**padded_inputs(tokens, mask))[0][mask].float()
    _attend_with(model, PACKED)
    inputs = pack(tokens, mask).inputs
    got = model(**inputs)[0][0].float()
    calls, layers = inputs["packing"].calls[0], model.config.get_text_config().num_hidden_layers
    if calls != layers:
        raise PackingRefused(f"{calls} of its {layers} layers attend as others do")
    tolerance = 1e-4 if model.dtype == torch.float32 else 0.05
    error, largest = float((got - expected).abs().max()), float(expected.abs().max())
    if not error <= tolerance * largest:
        raise PackingRefused(f"what it says of packed tokens is off by {error:.2g} of {largest:.2g}")


def _attend_with(model: PreTrainedModel, implementation: str) -> None:
    if model.config._attn_implementation != implementation:  # noqa: SLF001  as above
        with quiet_transformers():
            model.set_attn_implementation(implementation)


def _windows(model: PreTrainedModel) -> list[int]:
    """List the attention windows the configuration speaks of; sequences longer than any of them are not packed."""
    text = model.config.get_text_config().to_dict()
    return [int(text[name]) for name in ("sliding_window", "attention_chunk_size") if text.get(name)]
