"""An architecture with frozen embeddings."""

from rlcore import hookimpl


@hookimpl
def register_architectures(register):
    register(
        "fixed_words",
        "register_architectures:build",
        config="rlcore_transformers.models.model_options:CausalLMConfig",
        summary="causal_lm with frozen embeddings",
    )


def build(spec, config, *, tokenizer=None, value_head=False, reference=False):
    from rlcore_transformers.models.causal import build_causal_lm

    policy = build_causal_lm(spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference)
    policy.model.get_input_embeddings().requires_grad_(False)
    return policy
