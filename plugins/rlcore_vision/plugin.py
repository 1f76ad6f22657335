"""Registration of the architecture `vision_language`, and small copies of images for reports; light."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.types import Trajectories


@hookimpl
def register_architectures(register: Register) -> None:
    """Register policies that see images."""
    register(
        "vision_language",
        "rlcore_vision.model:build_vision_language",
        config="rlcore_vision.options:VisionLanguageConfig",
        summary="any AutoModelForImageTextToText whose image features take the place of tokens",
        fits="rlcore_vision.families:fits_vision_language",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )


@hookimpl
def on_rollout(run: RunView, batch: Trajectories) -> None:
    """Copy the images of rollouts, small, into the run's folder."""
    if run.ranks.is_main and _has_images():
        from rlcore_vision.thumbnails import copy_of_batch

        copy_of_batch(run.dir, batch)


@hookimpl
def on_evaluate(run: RunView, metrics: Mapping[str, float]) -> None:  # noqa: ARG001  the hook's signature
    """Copy the images of completions, small, into the run's folder."""
    if run.ranks.is_main and _has_images():
        from rlcore_vision.thumbnails import copy_of_completions

        copy_of_completions(run.dir)


def _has_images() -> bool:
    """Return whether this process has built a policy that sees; otherwise its modules stay unimported."""
    return "rlcore_vision.model" in sys.modules
