"""Steps of building a policy that decoder-only models and encoder-decoders share.

Also in this file: find the scale and cap that a model applies to its head's logits, so that log-probs can be computed
without it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import attrs
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ModelError
from rlcore.hookspecs import no_result
from rlcore.plugins.registry import services
from rlcore.protocols import HeadBuilder, Trunk
from rlcore_transformers.models import loading
from rlcore_transformers.models.forward import ActorCritic, check_next_token, predict, run_model
from rlcore_transformers.models.freezing import (
    HeadlessSeq2Seq,
    beneath_adapter,
    follow,
    freeze_below,
    is_encoder_decoder,
    share,
    thaw,
    vocabulary_size,
)
from rlcore_transformers.models.heads import (
    BranchValue,
    CriticValue,
    ScoreHead,
    TrunkValue,
    ValueHead,
    ValueSource,
    hidden_gain,
    hidden_width,
)
from rlcore_transformers.models.input_layout import InputLayout, kind_of
from rlcore_transformers.models.model_options import LanguageModelConfig, TransformerConfig
from rlcore_transformers.models.peft.adapters import find_adapters
from rlcore_transformers.models.peft.inject import attach
from rlcore_transformers.models.save_load import load_heads
from rlcore_transformers.models.speed import SpeedReport, TechniqueRefused
from rlcore_transformers.models.speed.activations import (
    checkpoint_activations,
    has_fused_activations,
    probe_tokens,
    probing,
    require_same,
)
from rlcore_transformers.models.speed.frozen_trunk import FrozenTrunk
from rlcore_transformers.models.speed.fused_logprobs import LogitMap

PROBES = (1.0, 1e6, -1e6, 0.0, -0.1, 3.0, -17.0, 45.0, 200.0)
"""Head outputs of the probe; the first gives the scale, the second the cap."""
UNKNOWN = "unrecognised operation after the head"


def find_logit_map(model: PreTrainedModel, layout: InputLayout) -> LogitMap:
    """Return what `model` does to every logit of its head.

    Raises:
        TechniqueRefused: the head is not a plain linear layer (an adapter in it, weights of 8 bits), the model does
            something else to logits than `LogitMap` describes, or the log-probs of a small batch differ.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise TechniqueRefused(f"its head is a {type(head).__name__}, not a plain linear layer")
    with probing(model):
        found = _probed(model, layout, head)
        _compare(model, layout, found)
    return found


def _batch(model: PreTrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    tokens = probe_tokens(model, 6)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    return tokens, mask, mask & (torch.arange(6, device=tokens.device) > 1)


def _probed(model: PreTrainedModel, layout: InputLayout, head: nn.Linear) -> LogitMap:
    """Replace the head's output by `PROBES`, each number in every column, and fit a `LogitMap` to the model's logits.

    Raises:
        TechniqueRefused: no `LogitMap` describes the logits.
    """
    values = torch.tensor(PROBES, device=model.device)
    order = torch.arange(len(PROBES))[:, None] + torch.arange(len(head.weight))
    given = values[(order % len(PROBES)).to(model.device)]
    with _fixed_output(head, given[None]):
        got = predict(model, layout, *_batch(model))[0].double()
    if got.shape != given.shape:
        raise TechniqueRefused(UNKNOWN)
    one, far = float(got[0, 0]), float(got[1, 0])
    capped = abs(far) < 0.5 * abs(PROBES[1] * one)
    if capped and abs(one) >= abs(far):
        raise TechniqueRefused(UNKNOWN)
    scale = far * math.atanh(one / far) if capped else one
    found = LogitMap(1.0 if math.isclose(scale, 1.0, rel_tol=1e-6) else scale, far if capped else 0.0)
    if not torch.allclose(found.apply_(given.double()), got, rtol=1e-5, atol=1e-6):
        raise TechniqueRefused(UNKNOWN)
    return found


@contextmanager
def _fixed_output(head: nn.Module, given: Tensor) -> Iterator[None]:
    """Make `head` return `given` for any input."""
    handle = head.register_forward_hook(lambda *_: given)
    try:
        yield
    finally:
        handle.remove()


def _compare(model: PreTrainedModel, layout: InputLayout, logit_map: LogitMap) -> None:
    """Compare log-probs and entropies computed without the head to those of its logits.

    Raises:
        TechniqueRefused: they differ.
    """
    expected, _ = run_model(model, layout, *_batch(model), entropy=True)
    mapped, _ = run_model(model, layout, *_batch(model), logit_map=logit_map, entropy=True, max_full_logits=0)
    assert expected.entropy is not None and mapped.entropy is not None  # noqa: S101, PT018  entropy=True
    require_same(model, "log-probs", mapped.logprobs, expected.logprobs, offset=1.0)
    require_same(model, "entropies", mapped.entropy, expected.entropy, offset=1.0)


def prepare(model: PreTrainedModel, config: TransformerConfig) -> None:
    """Set which parameters train, and add an adapter if `config.peft` is set.

    Raises:
        ModelError: the model has fewer than `unfrozen_layers` blocks; the adapter does not fit; both are set.
    """
    if config.peft is not None:
        attach(model, config.peft)
    if find_adapters(model) is not None:
        if config.unfrozen_layers is not None:
            raise ModelError(
                f"unfrozen_layers = {config.unfrozen_layers}: the model has an adapter, and only the adapter "
                "trains: leave out unfrozen_layers, or the adapter (model.peft)"
            )
        return
    thaw(model)
    if config.unfrozen_layers is not None:
        freeze_below(model, config.unfrozen_layers)


def load_critic(model: PreTrainedModel, config: LanguageModelConfig) -> PreTrainedModel:
    """Return the separate model of the value function that `config.critic` names.

    All of its parameters train. In a copy of a policy with an adapter, only the adapter's copy trains; the rest is
    shared.

    Raises:
        ModelError: the critic cannot be loaded, or has a smaller vocabulary than the policy.
    """
    if config.value_layers:
        raise ModelError(f"value_layers = {config.value_layers} and critic = {config.critic!r}: choose one of them")
    shared: dict[int, Any] = beneath_adapter(model) if config.critic == "copy" else {}
    critic = (
        copy.deepcopy(model, share(model) | shared)
        if config.critic is None or config.critic == "copy"
        else loading.load_critic(config.critic, config, kind_of(model.config))
    )
    for parameter in critic.parameters():
        parameter.requires_grad_(id(parameter) not in shared)
    if config.critic == "copy":
        follow(model, *_trunks(critic))
    own, needed = vocabulary_size(critic), vocabulary_size(model)
    if own < needed:
        raise ModelError(
            f"critic = {config.critic!r}: it has a vocabulary of {own} tokens and the policy of {needed}; a critic "
            "gets the policy's tokens, so it must use the same tokenizer"
        )
    return critic


def _trunks(critic: PreTrainedModel) -> list[Any]:
    """Return the parts of a critic that `make_value` runs."""
    return [critic.get_encoder(), critic.get_decoder()] if is_encoder_decoder(critic) else [critic.base_model]


def make_value(
    model: PreTrainedModel, config: LanguageModelConfig, critic: PreTrainedModel | None = None
) -> ValueSource:
    """Return a value function: on the critic if given, else on its own top layers, else on the policy's trunk.

    Raises:
        ModelError: the critic has no head; the policy has too few layers for `value_layers`.
    """
    if critic is None:
        return BranchValue(model, config.value_layers) if config.value_layers else TrunkValue(model)
    score = getattr(critic, "score", None)
    if score is None and critic.get_output_embeddings() is None:
        raise ModelError(f"critic = {config.critic!r}: {type(critic).__name__} has no head called `score`")
    head = ScoreHead(score) if score is not None else ValueHead(hidden_width(critic))
    trunk = HeadlessSeq2Seq(critic) if is_encoder_decoder(critic) else cast("PreTrainedModel", critic.base_model)
    return CriticValue(trunk, head)


def add_heads(
    spec: loading.ModelSpec,
    model: PreTrainedModel,
    layout: InputLayout,
    config: LanguageModelConfig,
    speed: SpeedReport,
    *,
    value: ValueSource | None,
    heads: Mapping[str, HeadBuilder],
    trunk: FrozenTrunk | None = None,
) -> ActorCritic:
    """Return the model with its heads: heads saved beside the model or its adapter if they fit, else new ones.

    Args:
        spec: what the model was loaded from.
        model: the language model.
        layout: builds the model's inputs.
        config: options of the architecture.
        speed: decides which techniques of speed are used, and logs the decisions.
        value: the value function; None without one.
        heads: what builds each further head.
        trunk: cache of the frozen bottom blocks; None without frozen blocks.
    """
    if config.gradient_checkpointing:
        checkpoint_activations(model)
        if isinstance(value, CriticValue):
            checkpoint_activations(value.trunk)
    check_next_token(model, layout)
    site = Trunk(
        width=hidden_width(model), vocabulary=model.get_output_embeddings().weight.shape[0], gain=hidden_gain(model),
        in_tiles=config.speed.fused_logprobs,
    )  # fmt: skip
    built: Any = {name: build(site) for name, build in heads.items()}
    logit_map = speed.find("fused_logprobs", lambda: find_logit_map(model, layout), None)
    speed.needs("small_logprobs", "fused_logprobs")
    if logit_map is not None:
        logit_map = attrs.evolve(logit_map, in_one_piece=config.speed.small_logprobs)
    _report(speed, model, layout)
    module = ActorCritic(model, layout, value=value, heads=built, trunk=trunk, logit_map=logit_map)
    for folder in (spec, config.peft):
        load_heads(folder, module)
    return module


def _report(speed: SpeedReport, model: PreTrainedModel, layout: InputLayout) -> None:
    """Decide on the techniques that depend on the device or the batch at run time, and log all decisions."""
    if layout.pads:
        speed.needs("length_groups")
    else:
        speed.skip("length_groups", "batches run packed")
    speed.needs("preallocated_cache")
    if has_fused_activations(model):
        speed.needs("fused_activations")
    else:
        speed.skip("fused_activations", "no GELU written out in Python")
    if services().decoder is not no_result:
        speed.needs("packed_decoding", "packing")
    else:
        speed.skip("packed_decoding", "no plugin such as rlcore-transformers:cpu makes decoders")
    speed.needs("shared_prompts", "packed_decoding")
    speed.log(type(model).__name__)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the model has an embedding for every token of the tokenizer.

    Raises:
        ModelError: the model's vocabulary is too small.
    """
    size = vocabulary_size(model)
    if len(tokenizer) > size:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {size}: "
            "call model.resize_token_embeddings(len(tokenizer)) or pass the model's own tokenizer"
        )
