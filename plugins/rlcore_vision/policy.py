"""The policy that sees: one of rlcore-transformers that keeps small copies of the images of its run's completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore_transformers.models.policy import ModelPolicy
from rlcore_vision.thumbnails import copy_images, copy_of_completions, images_of

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.types import Trajectories


class SeeingPolicy(ModelPolicy):
    """A policy whose prompts may show images, of which the run's report shows small copies."""

    def on_rollout(self, run: RunView, batch: Trajectories) -> None:
        """Copy the images of rollouts, small, into the run's folder; collective, as each rank may have its own rows."""
        images = run.ranks.gather_to_main(images_of(batch))
        if run.ranks.is_main:
            copy_images(run.dir, images)

    def on_evaluate(self, run: RunView) -> None:
        """Copy the images of completions, small, into the run's folder."""
        if run.ranks.is_main:
            copy_of_completions(run.dir)
