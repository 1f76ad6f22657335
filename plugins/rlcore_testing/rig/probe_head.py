"""A head that the laws of architectures and samplers bring, as an algorithm would (`rlcore.protocols.SteeringHead`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.protocols import Trunk

NAME, OUTPUT = "probe", "ratings"


class ProbeHead(nn.Module):
    """Rate every token by a linear map of the hidden state, Linear(H, V); ratings less V steer sampling.

    Args:
        trunk: what it is built on.
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.fall = nn.Linear(trunk.width, trunk.vocabulary)

    def forward(self, hidden: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        """Return the rating of each chosen token and the token itself: float32[2, N]."""
        ratings = self.fall(hidden.float()).gather(1, chosen[:, None])[:, 0]
        return {OUTPUT: torch.stack([ratings, chosen.float()])}

    def advantages(self, hidden: Tensor, values: Tensor | None) -> Tensor:
        """Return the ratings of all tokens, less V: float32[B, V]."""
        ratings: Tensor = self.fall(hidden.float())
        return ratings if values is None else ratings - values[:, None]


PROBE = {NAME: ProbeHead}
"""The argument `heads` of an architecture."""
