"""Requests for completions and their answers, in the form of OpenAI's `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore_vllm.errors import EngineError

PATH = "/completions"
SEEDS = 2**31 - 1
"""Servers differ in the largest seed that they accept; all accept those of 31 bits."""
LONGEST_TOKEN = 256
"""Characters of text per token beyond which a server cannot have kept to the limit."""


@attrs.frozen
class TextRequest:
    """A request for one completion.

    Attributes:
        prompt: its text, or its token ids.
        limit: most new tokens.
        seed: of its random numbers; None if it needs none.
        sampling: the options of sampling.
        eos: tokens that end it.
    """

    prompt: str | Sequence[int]
    limit: int
    seed: int | None
    sampling: SamplingConfig
    eos: Sequence[int] = ()

    def body(self, model: str, extra: Sequence[str] = ()) -> dict[str, Any]:
        """Return the request.

        Args:
            model: the name of the server's model.
            extra: the fields beyond the API of OpenAI that may be sent.
        """
        sampling = self.sampling
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        body: dict[str, Any] = {
            "model": model, "prompt": prompt, "max_tokens": self.limit, "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }  # fmt: skip
        if self.seed is not None:
            body["seed"] = self.seed % SEEDS
        if sampling.stop_sequences:
            body["stop"] = list(sampling.stop_sequences)
        if "top_k" in extra:
            body["top_k"] = sampling.top_k
        if "min_tokens" in extra:
            body["min_tokens"] = min(sampling.min_new_tokens, self.limit)
        if "stop_token_ids" in extra:
            body |= {"stop_token_ids": list(self.eos), "ignore_eos": True}
        if "return_token_ids" in extra:
            body["return_token_ids"] = True
        return body


@attrs.frozen
class Text:
    """One completion.

    Attributes:
        text: its text; most servers leave out what ended it.
        tokens: its token ids; None if the server returns none.
        is_stopped: whether it ended before its limit.
        states_reason: whether the server states what ended it.
        reason: the stop sequence, or the token, that ended it; None for the model's EOS.
    """

    text: str
    tokens: tuple[int, ...] | None = None
    is_stopped: bool = False
    states_reason: bool = False
    reason: str | int | None = None


def read_text(answer: Any, limit: int, where: str, *, has_tokens: bool = False) -> Text:
    """Return the completion in an answer.

    Args:
        answer: the decoded JSON.
        limit: most new tokens that were asked for.
        where: the server, for errors.
        has_tokens: token ids were asked for.

    Raises:
        EngineError: the answer is none to such a request.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, Sequence) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        count = len(choices) if isinstance(choices, Sequence) else "no list of them"
        raise EngineError(f"{where}: one completion was asked for, and the answer has {count}: {_shown(answer)}")
    choice: Mapping[str, Any] = choices[0]
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str):
        raise EngineError(f"{where}: the completion has no text: {_shown(choice)}; is this a server of completions?")
    if finish not in ("stop", "length"):
        raise EngineError(f"{where}: the completion ended with {finish!r:.60}, neither with 'stop' nor with 'length'")
    if len(text) > LONGEST_TOKEN * limit:
        raise EngineError(
            f"{where}: the completion has {len(text)} characters, and at most {limit} tokens were asked for; the "
            "server does not keep to max_tokens"
        )
    tokens = _tokens(choice, limit, where) if has_tokens else None
    reason = choice.get("stop_reason")
    is_known = isinstance(reason, (str, int)) and not isinstance(reason, bool)
    return Text(text, tokens, finish == "stop", "stop_reason" in choice, reason if is_known else None)


def _tokens(choice: Mapping[str, Any], limit: int, where: str) -> tuple[int, ...]:
    tokens = choice.get("token_ids")
    if not isinstance(tokens, Sequence) or not all(type(each) is int and each >= 0 for each in tokens):
        raise EngineError(
            f"{where}: the completion has no token ids: {_shown(choice)}; remove return_token_ids from sampler.extra"
        )
    if not 0 < len(tokens) <= limit:
        raise EngineError(f"{where}: the completion has {len(tokens)} tokens, and 1 to {limit} were asked for")
    return tuple(tokens)


def _shown(value: Any) -> str:
    return f"{str(value)[:200]!r}"


def check_options(sampling: SamplingConfig, extra: Sequence[str], where: str = "gen") -> None:
    """Check that requests can state these options.

    Raises:
        ConfigError: they cannot.
    """
    if sampling.beta:
        raise ConfigError(
            f"{where}.beta = {sampling.beta:g}: a server has no Q-heads; set beta to 0, or use sampler: default"
        )
    if "" in sampling.stop_sequences:
        raise ConfigError(f"{where}.stop_sequences: '' would end every continuation; remove it")
    for option, value, field in (
        ("top_k", sampling.top_k or None, "top_k"),
        ("min_new_tokens", sampling.min_new_tokens or None, "min_tokens"),
        ("eos_token_ids", sampling.eos_token_ids, "stop_token_ids"),
    ):
        if value is not None and field not in extra:
            raise ConfigError(
                f"{where}.{option} = {value}: the API of OpenAI has no such option; leave it out, or add '{field}' to "
                "sampler.extra if the server accepts that field, as vLLM does"
            )
