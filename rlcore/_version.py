"""The version of rlcore."""

__version__ = "0.1.0"
