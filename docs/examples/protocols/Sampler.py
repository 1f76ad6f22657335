"""A sampler that samples two continuations of each prompt and returns the likelier one."""

import torch

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


def better_of_two(policy, prompts, sampling, *, generator=None, logit_mask=None):
    pair = [sample(policy, prompts, sampling, generator=generator, logit_mask=logit_mask) for _ in range(2)]
    both = Trajectories.concat(pair)
    first, second = both["logprobs"].sum(1).view(2, -1)
    row = torch.arange(len(prompts), device=first.device)
    return both.rows(torch.where(second > first, row + len(prompts), row))


better_of_two.draws_from_policy = False  # likelier continuations are oversampled


policy = build_causal_lm("gpt2", CausalLMConfig())
prompts = [Prompt(text, tuple(policy.tokenizer(text)["input_ids"])) for text in ("My cat", "Dogs")]
options = SamplingConfig(max_new_tokens=4)
batch = better_of_two(policy, prompts, options, generator=torch.Generator().manual_seed(0))
again = better_of_two(policy, prompts, options, generator=torch.Generator().manual_seed(0))
assert torch.equal(batch.tokens, again.tokens)
for row, prompt in enumerate(prompts):
    assert batch.tokens[row, : len(prompt.tokens)].tolist() == list(prompt.tokens)
