"""An example of an episode without a model, for `rlcore preview`: the turns are texts of the author, or ours."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Sample, Trajectories

TURNS = ("This is an example answer.", "This is another one: 42.")
MOST = 3
"""Turns of an example."""


class ExampleTurns:
    """A sampler of turns that writes given texts, each ended by EOS.

    Args:
        texts: the texts, which are repeated.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._num_calls = tuple(texts) or TURNS, 0

    def __call__(
        self,
        policy: Any,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,  # noqa: ARG002  a sampler's signature
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Trajectories:
        """Return the next text after each prompt."""
        text = self._texts[self._num_calls % len(self._texts)]
        self._num_calls += 1
        eos = policy.tokenizer.eos_token_id
        ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], *([] if eos is None else [eos])]
        rows = [[*prompt.tokens, *ids] for prompt in prompts]
        masks = [[False] * len(prompt.tokens) + [True] * len(ids) for prompt in prompts]
        return Trajectories.stack(rows, masks)


def stand_in(tokenizer: Any) -> Any:
    """Return what the loop reads of a policy, for one that has only a tokenizer."""
    return SimpleNamespace(
        tokenizer=tokenizer, device=torch.device("cpu"), max_prompt_length=0, max_length=0, outputs_begin_text=False
    )


def to_sample(batch: Trajectories) -> Sample:
    """Return the first of a batch of episodes as a sample, whose chosen tokens are those of the policy."""
    kept = batch.mask[0]
    return Sample(tuple(batch.tokens[0][kept].tolist()), tuple(batch.action_mask[0][kept].tolist()))
