"""What the sampler `vllm` declares to `rlcore plan`: its servers, their devices and the weights that reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore_engines.vllm.config import VLLMConfig

PARALLEL = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))
"""Arguments of `vllm serve` whose product is the number of its devices."""


def serving_of(config: VLLMConfig) -> Mapping[str, Any]:
    """Return attributes of `rlcore_tools.plan.serving.Serving`.

    Process 0 writes the weights to files of 256 MB, which each server reads, or sends them in buffers of that size
    (`transfer: broadcast`). Log-probs of as many rows as are asked
    for, and of those of the check before, are compared after each change.
    """
    from rlcore_engines.vllm.weight_check import CHECKED_TOKENS
    from rlcore_engines.vllm.weights import PIECE

    found: dict[str, Any] = {
        "reads": "stream", "engines": len(config.urls) or 1, "chunk": PIECE, "checked": 2 * config.check_rows,
        "checked_tokens": CHECKED_TOKENS, "sleeps": config.sleep,
        "keeps": config.transfer == "broadcast", "sends": "trained" if config.lora == "adapter" else "weights",
    }  # fmt: skip
    if config.url:
        return found | {"dtype": "bfloat16"}  # or float16: a server that is started without --dtype
    count = 1
    for names in PARALLEL:
        count *= int(_value(config.args, names) or 1)
    visible = [int(each) for each in config.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip().isdecimal()]
    share = _value(config.args, ("--gpu-memory-utilization",))
    return found | {
        "devices": count, "numbers": tuple(visible[:count] or range(count)), "named": bool(visible),
        "utilisation": float(share) if share else None, "dtype": config.dtype,
    }  # fmt: skip


def _value(args: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an argument, written as `--name value` or `--name=value`."""
    for i, each in enumerate(args):
        name, equals, value = each.partition("=")
        if name in names:
            return value if equals else (args[i + 1] if i + 1 < len(args) else None)
    return None
