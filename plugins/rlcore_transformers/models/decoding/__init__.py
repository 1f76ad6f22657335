"""Decoders: generate token by token from a key-value cache."""
