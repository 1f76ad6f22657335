"""Data: load prompts and demonstrations from any source, tokenise them, and decode sampled tokens."""
