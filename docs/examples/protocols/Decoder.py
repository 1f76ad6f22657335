"""A decoder without a cache: it computes the whole sequence again for every token."""

import torch

from rlcore.protocols import DecodeStep
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


class CachelessDecoder:
    def __init__(self, model, prompts):
        self.model, self.rows = model, [list(prompt) for prompt in prompts]

    @torch.no_grad()
    def start(self):
        last = [self.model(input_ids=torch.tensor([row])).logits[0, -1] for row in self.rows]
        return DecodeStep(torch.stack(last), values=None)

    def step(self, tokens):
        for row, token in zip(self.rows, tokens.tolist(), strict=True):
            row.append(token)
        return self.start()

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows.tolist()]


policy = build_causal_lm("gpt2", CausalLMConfig())
policy.module.eval()
prompts = [policy.tokenizer(text)["input_ids"] for text in ("My cat", "Dogs")]
plain, cached = CachelessDecoder(policy.model, prompts), policy.decoder(prompts, max_new_tokens=2)
assert torch.allclose(plain.start().logits, cached.start().logits, atol=1e-4)
sampled = torch.tensor([5, 6])
assert torch.allclose(plain.step(sampled).logits, cached.step(sampled).logits, atol=1e-4)
for decoder in (plain, cached):
    decoder.keep(torch.tensor([1]))  # drop the first sequence, which has ended
assert torch.allclose(plain.step(sampled[1:]).logits, cached.step(sampled[1:]).logits, atol=1e-4)
