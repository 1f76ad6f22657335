"""What a trainer will ask of the machine, as it says itself before it is built; light."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Workload:
    """Say how large the pieces are that a trainer works on, and what it wants of its policy.

    A trainer says so by a static method, which is given its options and the number of its prompts (0 where that is not
    known):

        @staticmethod
        def workload(config: MyConfig, num_prompts: int) -> Workload: ...

    Attributes:
        batch_size: sequences of one optimizer step, on all ranks together.
        micro_batch_size: sequences of one forward pass with gradients on a rank; 0 takes all.
        micro_batch_tokens: tokens of one such pass at the most, padding counted; 0 sets no bound.
        num_sampled: prompts continued in a round, on all ranks together; 0 where it learns from samples alone.
        num_held: sequences kept between sampling and learning, by every rank.
        num_scored: sequences of one forward pass without gradients on a rank; 0 where there are none.
        value_head: the policy has a value function.
        reference: the policy is compared with what it was.
        q_heads: Q-heads the policy has.
        entropy: the entropy of every chosen token's distribution takes part in the loss.
        dropout: trains with the model's own dropout.
    """

    batch_size: int
    micro_batch_size: int = 0
    micro_batch_tokens: int = 0
    num_sampled: int = 0
    num_held: int = 0
    num_scored: int = 0
    value_head: bool = False
    reference: bool = False
    q_heads: int = 0
    entropy: bool = False
    dropout: bool = False
