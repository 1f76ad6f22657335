"""Architectures whose decoders are wrong, each in one thing."""

from contextlib import nullcontext

import torch
from wrong_architectures import Wrong

from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder


class OutsideAutocast(Wrong):
    """Decode in full precision, whatever the run's is."""

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        given, self._autocast = self._autocast, nullcontext
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        self._autocast = given
        return decoder


class PaddingDecoded(Wrong):
    """Fill up shorter prompts with a token that the decoder takes for real."""

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        longest = max(map(len, prompts))
        padded = [[7] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        return super().decoder(padded, max_new_tokens=max_new_tokens)


class KeepsOthers(Wrong):
    """Carry the caches of the first rows along, whichever are kept."""

    class Decoder(CausalDecoder):
        def keep(self, rows):
            super().keep(torch.arange(len(rows)))

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        decoder.__class__ = self.Decoder
        return decoder


class DecodesOtherValues(Wrong):
    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        heads = decoder._heads
        decoder._heads = lambda hidden: (heads(hidden)[0] + 1.0, None)
        return decoder


class Endless(Wrong):
    def spoil(self):
        self.eos_token_ids = (29,)


class HighestAdvantage(Wrong):
    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens, advantages=advantages)
        if advantages:
            head = self.module.heads["probe"]

            def highest(hidden):
                return self.module.value.head(hidden), head.fall(hidden)

            decoder._heads = highest
        return decoder
