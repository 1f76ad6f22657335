"""Language models of transformers as architectures, text to tokens, sampling, optimizers and schedules for rlcore."""
