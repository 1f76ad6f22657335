"""Kernels of `liger-kernel`, which run on GPUs through Triton."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore_transformers.models.hub import first_line, quiet_transformers

LEFT_OUT = {"fused_linear_cross_entropy": False, "cross_entropy": False, "rope": False}
"""Kernels that are not used: losses are computed from hidden states (`model.speed.fused_logprobs`), and rotary
embeddings would be replaced for all models of the family, also for those on the CPU."""


def use_liger(model: PreTrainedModel) -> None:
    """Replace layers of `model` by Liger's kernels, in place.

    Raises:
        ConfigError: the machine or the model has none.
    """
    missing = [name for name in ("triton", "liger_kernel") if find_spec(name) is None]
    if not torch.cuda.is_available():
        reason = "these kernels run on GPUs through Triton, and this machine has no GPU that torch can use"
    elif missing:
        reason = f"{' and '.join(missing)} is not installed: pip install liger-kernel"
    else:
        reason = _apply(model)
    if reason:
        raise ConfigError(f"model.liger_kernel = true: {reason}; or leave it out")


def _apply(model: PreTrainedModel) -> str:
    """Replace the layers; return why that is not possible."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # type: ignore[import-not-found]
    from transformers.integrations.liger import apply_liger_kernel

    kind = str(model.config.model_type)
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        return f"liger-kernel has no kernels for {kind}"
    try:
        with quiet_transformers():
            apply_liger_kernel(model, LEFT_OUT)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"liger-kernel refuses {type(model).__name__}: {first_line(error)}"
    return ""
