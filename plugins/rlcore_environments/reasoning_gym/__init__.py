"""Procedural reasoning tasks of reasoning-gym as an environment, with mixtures of families and levels of difficulty."""
