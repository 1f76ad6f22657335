"""Registration of the pipelines `preferences` and `unpaired`."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register the tokenisation of preferences and of labelled answers."""
    register(
        "preferences",
        "rlcore_transformers.preferences.preferences:build_preferences",
        summary="tokenise pairs of a chosen and a rejected answer",
    )
    register(
        "unpaired",
        "rlcore_transformers.preferences.preferences:build_unpaired",
        summary="tokenise answers, each labelled desirable or not",
    )
