"""Options of the core's architectures; light, so that they can be listed without torch."""

from __future__ import annotations

from typing import Literal

from rlcore.config import config, option


@config
class CausalLMConfig:
    """A decoder-only language model: what of it trains, where its values come from, how it runs."""

    unfrozen_layers: int | None = option(
        None, "train the top k blocks, not those below, the embeddings, or what is tied to them; 0 trains heads only, "
        "all if absent", ge=0, unit="layers",
    )  # fmt: skip
    value_layers: int = option(
        0, "top blocks of which the value function gets a trainable copy of its own; 0 puts its head on the policy",
        ge=0, unit="layers",
    )  # fmt: skip
    critic: str | None = option(
        None, "model that estimates values instead: a hub id or folder (a reward model brings its head), or `copy`"
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option("float32", "type the weights are loaded in")
    attention: str | None = option(None, "attention implementation of `transformers`; its own choice if absent")
    packing: bool = option(
        True, "keep padding out of the linear layers, for families where that is proved exact at start"
    )
    fused_activations: bool = option(True, "replace slow spellings of GELU by torch's fused one (equal to 5e-7)")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass to save memory")
    trust_remote_code: bool = option(False, "run code that a hub repository brings")
    revision: str | None = option(None, "hub revision of the model")
