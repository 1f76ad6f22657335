"""The model before training, kept in a folder and restored from it, shown with the built-in policy."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rlcore.protocols import Restorable
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

model = AutoModelForCausalLM.from_pretrained("gpt2")  # a model in memory has no name to load it by
weight = next(model.parameters())
before = weight.detach().clone()
policy = build_causal_lm(model, CausalLMConfig())
assert isinstance(policy, Restorable)
assert not policy.saves_part  # there is no adapter, so that checkpoints contain the whole model

with tempfile.TemporaryDirectory() as parent:
    start = Path(parent) / "start"
    policy.save_start(start)
    policy.note_start(start)
    with torch.no_grad():
        weight.add_(1.0)

    # A resumed run passes the folder to the architecture, so that a reference has the weights before training.
    again = build_causal_lm(model, CausalLMConfig(), tokenizer=policy.tokenizer, reference=True, start=start)
assert again.model is model
assert torch.equal(weight, before)
