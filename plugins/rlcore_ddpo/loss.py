"""The loss of DDPO, one number for each image at one denoising step.

Also in this file: advantages: rewards compared with those of their round, or with the last ones of their prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


def clipped_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_range: float) -> Tensor:
    """Return max(-A rho, -A clip(rho, 1 - eps, 1 + eps)) with rho = exp(logprobs - old_logprobs): float[B].

    Black et al. 2023, arXiv:2305.13301, section 4.3.

    Args:
        logprobs: float[B], of the steps under the policy that learns.
        old_logprobs: float[B], of the same steps when they were sampled.
        advantages: float[B].
        clip_range: eps.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_range, 1 + clip_range))


EPS = 1e-6
"""Added to the standard deviation."""


def standardised(rewards: Tensor, reference: Tensor) -> Tensor:
    """Return (rewards - mean) / (std + 1e-6) with mean and population std of `reference`: float64[B]."""
    reference = reference.double()
    return (rewards.double() - reference.mean()) / (reference.std(correction=0) + EPS)


class PromptStatistics:
    """The last rewards of every prompt (Black et al. 2023, arXiv:2305.13301, appendix).

    Args:
        size: rewards kept of each prompt.
        min_count: rewards of a prompt below which it is compared with the round.
    """

    def __init__(self, *, size: int, min_count: int) -> None:
        self.size, self.min_count = size, min_count
        self._kept: dict[str, deque[float]] = {}

    def advantages(self, prompts: Sequence[str], rewards: Tensor) -> Tensor:
        """Keep the rewards of a round, and return the advantage of each: float64[B].

        Args:
            prompts: B texts, the keys of the statistics.
            rewards: float[B].
        """
        for prompt, reward in zip(prompts, rewards.tolist(), strict=True):
            self._kept.setdefault(prompt, deque(maxlen=self.size)).append(reward)
        advantages = standardised(rewards, rewards)
        for prompt in dict.fromkeys(prompts):
            kept = self._kept[prompt]
            if len(kept) >= self.min_count:
                rows = torch.tensor([each == prompt for each in prompts], device=rewards.device)
                advantages[rows] = standardised(rewards[rows], torch.tensor(list(kept), device=rewards.device))
        return advantages

    def state_dict(self) -> dict[str, list[float]]:
        """Return the kept rewards by prompt."""
        return {prompt: list(kept) for prompt, kept in self._kept.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Restore the state that `state_dict` returned."""
        self._kept = {prompt: deque(kept, maxlen=self.size) for prompt, kept in state.items()}
