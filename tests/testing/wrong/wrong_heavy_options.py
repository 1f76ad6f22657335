"""Options beside what imports torch."""

import torch

from rlcore.config import config, option


@config
class Heavy:
    """Fine but for its neighbours."""

    width: int = option(torch.ones(3).numel(), "how wide")
