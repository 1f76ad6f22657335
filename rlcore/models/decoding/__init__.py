"""Decoders: continue sequences token by token from a key-value cache."""
