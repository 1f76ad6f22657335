"""The life cycle that policies and scorers share, shown with the built-in policy."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch

from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig())
weight = next(policy.module.parameters())
assert policy.device == weight.device
assert policy.export_class == "AutoModelForCausalLM"

with tempfile.TemporaryDirectory() as parent:
    folder = Path(parent) / "model"
    policy.save_pretrained(folder)
    kept, version = weight.detach().clone(), policy.version
    with policy.training_step(), torch.no_grad():
        weight.add_(1.0)
    # Loading keeps the parameters and changes what they hold; the version rises with it.
    policy.load_pretrained(folder)
    assert next(policy.module.parameters()) is weight
    assert torch.equal(weight, kept)
    assert policy.version > version

    policy.export(Path(parent) / "exported")
    assert (Path(parent) / "exported" / "config.json").exists()

# The updater sets the module that synchronises gradients, and the run's precision.
policy.use_forward(policy.module, autocast=nullcontext)
