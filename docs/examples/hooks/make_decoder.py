"""Decode small batches with a decoder of one's own, which here only says so."""

from rlcore import hookimpl


class Announced:
    def __init__(self, request):
        from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder

        print(f"decoding {len(request.prompts)} prompts")
        self.decoder = CausalDecoder(
            request.model, request.prompts, max_new_tokens=request.max_new_tokens, heads=request.read_heads,
            autocast=request.autocast,
        )  # fmt: skip

    def start(self):
        return self.decoder.start()

    def step(self, tokens):
        return self.decoder.step(tokens)

    def keep(self, rows):
        self.decoder.keep(rows)


@hookimpl
def make_decoder(request):
    return Announced(request) if len(request.prompts) < 8 else None
