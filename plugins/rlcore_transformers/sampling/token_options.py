"""Options of samplers that change the distribution of the next token, beyond those of the section `gen`; light.

Also in this file: the options of the built-in sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError

Token = int | str
"""A token as an option names it: its id, or its text."""
INFINITE = float("inf")
MAX_BIAS = 100.0
"""The largest bias of the API of OpenAI; vLLM cuts larger ones to it."""
C = TypeVar("C", bound="TokenOptions")


@config
class TokenOptions:
    """Options that change the distribution of the next token; the options of a sampler inherit from this class."""

    min_p: float = option(
        0.0, "sample from the tokens only whose probability is at least this fraction of the most likely one's; 0: "
        "from all", ge=0, le=1, source="arXiv:2407.01082",
    )  # fmt: skip
    repetition_penalty: float = option(
        1.0, "of tokens that the prompt or the response contains, positive logits are divided by this number and "
        "negative ones multiplied; 1: unchanged", gt=0, lt=INFINITE, source="arXiv:1909.05858",
    )  # fmt: skip
    logit_bias: Mapping[int | str, float] | tuple[tuple[int | str, float], ...] = option(
        (), "numbers from -100 to 100 that are added to the logits of tokens, such as {262: -5, ' the': 1}, or pairs "
        "[[262, -5], [' the', 1]]; a number names a token by its id, a text by its text",
    )  # fmt: skip
    allowed_tokens: tuple[int | str, ...] | None = option(
        None, "the only tokens that are sampled, by id or text; EOS is one of them only if it is listed; default: all"
    )
    forbidden_tokens: tuple[int | str, ...] = option((), "tokens that are not sampled, by id or text")

    def __attrs_post_init__(self) -> None:
        """Check what does not depend on a tokenizer."""
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))  # JSON would turn ids into texts
        for token, bias in self.biases:
            if not abs(bias) <= MAX_BIAS:
                raise ConfigError(
                    f"logit_bias[{token!r}] = {bias:g}: must lie in [-100, 100]; forbidden_tokens excludes a token"
                )
        if self.allowed_tokens == ():
            raise ConfigError("allowed_tokens is an empty list, so that no token can be sampled; leave it out")

    @property
    def biases(self) -> tuple[tuple[Token, float], ...]:
        """`logit_bias` as pairs of a token and its bias."""
        return cast("tuple[tuple[Token, float], ...]", self.logit_bias)

    @property
    def reshaping(self) -> tuple[str, ...]:
        """Names of the options that are set, and so change the distribution."""
        return tuple(name for name, default in _DEFAULTS.items() if getattr(self, name) != default)

    def token_options(self, cls: type[C]) -> C:
        """Return options of another sampler with the same distribution, and its defaults otherwise."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in _DEFAULTS}
        return cls(**chosen)


def _pairs(biases: Mapping[Token, float]) -> tuple[tuple[Token, float], ...]:
    for token, bias in biases.items():
        if isinstance(token, str) and token.isdecimal():
            raise ConfigError(
                f"logit_bias = {{{token!r}: {bias:g}}}: an id or a text? In JSON, every key is a text; write "
                f"[[{int(token)}, {bias:g}]] for the id, [[{token!r}, {bias:g}]] for the text"
            )
    return tuple(biases.items())


_DEFAULTS = attrs.asdict(cast("Any", TokenOptions()), recurse=False)


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
