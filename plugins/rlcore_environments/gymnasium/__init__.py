"""Gymnasium environments for language models: observations and actions become texts."""
