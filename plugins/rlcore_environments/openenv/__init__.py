"""Environments of OpenEnv servers. This file and `episodes` import nothing of rlcore, since other Pythons run them."""
