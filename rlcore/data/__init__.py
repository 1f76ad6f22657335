"""Prompts and demonstrations: where they come from, how they become tokens, how sampled tokens become text again."""
