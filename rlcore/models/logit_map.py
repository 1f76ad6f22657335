"""Find out whether a model's log-probs can be had without its head running, and prove it before relying on it.

Between the head's matrix product and the logits, families scale (Cohere, Granite) or cap (Gemma 2) each logit. What a
model does is read off the model itself: given numbers in place of what its head says, it shows what it makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore.models.forward import predict, say
from rlcore.models.freezing import vocabulary_size
from rlcore.models.inputs import Reader
from rlcore.models.speed.logit_tiles import LogitMap

PROBES = (1.0, 1e6, -1e6, 0.0, -0.1, 3.0, -17.0, 45.0, 200.0)
"""Logits to see what becomes of them; the first gives the scale, the second the cap."""


@torch.no_grad()
def find_logit_map(model: PreTrainedModel, reader: Reader) -> LogitMap | None:
    """Return what `model` does to every logit of its head; None where its head must run itself.

    That is where the head is no plain linear layer (an adapter in it, weights of 8 bits), where something else is done
    to logits than `LogitMap` knows, and where the log-probs of a small batch come out differently.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    parts = [part for part in model.modules() if part.training]
    model.eval()
    try:
        found = _probed(model, reader, head)
        exact = found is not None and _is_exact(model, reader, found)
    except (ModelError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError):
        exact = False
    finally:
        for part in parts:
            part.training = True
    if not exact:
        get_logger("rlcore.models").info("logits are kept whole: what follows the head is not known",
                                         model=type(model).__name__)  # fmt: skip
        return None
    return found


def _batch(model: PreTrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    tokens = (torch.arange(12, device=model.device).reshape(2, 6) * 7 + 1) % vocabulary_size(model)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    return tokens, mask, mask & (torch.arange(6, device=tokens.device) > 1)


def _probed(model: PreTrainedModel, reader: Reader, head: nn.Linear) -> LogitMap | None:
    """Give `model` numbers for logits, in every column each of them, and read the map off what comes out."""
    values = torch.tensor(PROBES, device=model.device)
    order = torch.arange(len(PROBES))[:, None] + torch.arange(len(head.weight))
    given = values[(order % len(PROBES)).to(model.device)]
    with _answering(head, given[None]):
        got = predict(model, reader, *_batch(model))[0].double()
    if got.shape != given.shape:
        return None
    one, far = float(got[0, 0]), float(got[1, 0])
    capped = abs(far) < 0.5 * abs(PROBES[1] * one)
    if capped and abs(one) >= abs(far):
        return None
    scale = far * math.atanh(one / far) if capped else one
    found = LogitMap(1.0 if math.isclose(scale, 1.0, rel_tol=1e-6) else scale, far if capped else 0.0)
    return found if torch.allclose(found.apply_(given.double()), got, rtol=1e-5, atol=1e-6) else None


@contextmanager
def _answering(head: nn.Module, given: Tensor) -> Iterator[None]:
    """Have `head` say `given` whatever it reads."""
    handle = head.register_forward_hook(lambda *_: given)
    try:
        yield
    finally:
        handle.remove()


def _is_exact(model: PreTrainedModel, reader: Reader, logit_map: LogitMap) -> bool:
    """Tell whether log-probs that the head has no part in are those that it gives."""
    due, _ = say(model, reader, *_batch(model), entropy=True)
    got, _ = say(model, reader, *_batch(model), logit_map=logit_map, entropy=True, most=0)
    assert due.entropy is not None and got.entropy is not None  # noqa: S101, PT018  asked for
    tolerance = 1e-4 if model.dtype == torch.float32 else 0.05
    pairs = ((got.logprobs, due.logprobs), (got.entropy, due.entropy))
    return all(bool((said - known).abs().max() <= tolerance * (1 + known.abs().max())) for said, known in pairs)
