"""Turn a model specification into a policy; `causal` and `seq2seq` are the architectures of the core."""
