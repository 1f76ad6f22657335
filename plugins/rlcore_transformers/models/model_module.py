"""The module that a learner trains: a model of `transformers`, with what an algorithm adds to it."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel


class ModelModule(nn.Module):
    """A module around a model of `transformers`, such as a language model with its heads.

    Attributes:
        model: the model.
    """

    model: PreTrainedModel

    def lockstep_copy(self, memo: dict[int, Any], *, every_block: bool = False) -> ModelModule:  # noqa: ARG002
        """Return a copy that runs every block once in each forward pass, whatever the batch.

        Processes that divide the weights gather each block together.

        Args:
            memo: that of `copy.deepcopy`: the copies of what is not copied anew, such as parameters, by the id of the
                original.
            every_block: run also blocks whose outputs are cached.
        """
        return copy.deepcopy(self, memo)
