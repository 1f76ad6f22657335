"""The built-in architecture with every layer but the last frozen."""

from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


def build_last_layer(spec, config, *, tokenizer=None, value_head=False, reference=False):
    policy = build_causal_lm(spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference)
    policy.model.requires_grad_(False)
    policy.model.transformer.h[-1].requires_grad_(True)
    return policy


policy = build_last_layer("gpt2", CausalLMConfig())
trained = {name for name, weight in policy.module.named_parameters() if weight.requires_grad}
assert trained
assert all("transformer.h.1." in name for name in trained)
