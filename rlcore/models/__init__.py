"""Turn a model specification into a policy; `causal` is the architecture the core ships."""
