"""Find the scale and cap that a model applies to its head's logits, so that log-probs can be computed without it.

Between the head's matrix product and the logits, some families scale (Cohere, Granite) or cap (Gemma 2) each logit. The
probe replaces the head's output by known numbers and compares the model's logits with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore_transformers.models.forward import predict, run_model
from rlcore_transformers.models.input_layout import InputLayout
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.activations import probe_tokens, probing, require_same
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
