"""Tasksets of verifiers. This file and `episodes` import nothing of rlcore, since other Pythons run them."""
