"""Options of the built-in sampler; light, so that they can be listed without torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore_transformers.sampling.token_options import TokenOptions


@config
class SamplerConfig(TokenOptions):
    """The built-in sampler. The first two options are techniques of speed and are on by default."""

    early_leaving: bool = option(True, "finished sequences leave the running batch while the others continue")
    inverse_cdf: bool = option(
        True,
        "draw tokens by inverting the cumulative distribution; false draws with `torch.multinomial`, which is slower, "
        "and makes the tokens of a sequence depend on the sequences in its batch",
    )


ALL_ON = SamplerConfig()
