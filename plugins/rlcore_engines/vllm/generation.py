"""Requests for completions and their answers, in the form of vLLM's `/inference/v1/generate`.

Also in this file: requests for completions and their answers, in the form of OpenAI's `/v1/completions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlcore.errors import ConfigError, DataError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.connection import EngineError, ServerUnavailable
from rlcore_transformers.sampling.record import TokenIds
from rlcore_transformers.sampling.token_options import TokenOptions

PATH = "/inference/v1/generate"
LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature where a smaller one is asked for."""
FIRST_IMAGE = 2**30
"""Tokens from here on, beyond every vocabulary, stand for the images of a policy that sees."""
FLOOR = -9999.0
"""What vLLM sends in place of a log-prob that is not a number, or of minus infinity."""
OF_RUN = re.compile(r"[0-9a-f]{8}-\d+-\d+")
"""A name that a run gives to weights: its own name, the policy's number, and the policy's version (`Fleet`)."""
UNCHANGED = TokenOptions()


@attrs.frozen
class Completion:
    """A request for one completion.

    Attributes:
        prompt: token ids.
        limit: most new tokens.
        seed: of its random numbers; None if it needs none.
        sampling: the options of sampling.
        eos: tokens that end it.
        model: name of the model to ask, where the server has several.
        changes: further parameters of sampling (`changes_of`).
    """

    prompt: tuple[int, ...]
    limit: int
    seed: int | None
    sampling: SamplingConfig
    eos: tuple[int, ...]
    model: str | None = None
    changes: Mapping[str, Any] = attrs.field(factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the request. All options are stated, since the server may have defaults of its own."""
        sampling = self.sampling
        parameters = {
            "max_tokens": self.limit, "min_tokens": min(sampling.min_new_tokens, self.limit),
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": 0.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": 0,
            "stop_token_ids": list(self.eos), "ignore_eos": True, "stop": list(sampling.stop_sequences),
            "detokenize": bool(sampling.stop_sequences), "skip_special_tokens": False, **self.changes,
        }  # fmt: skip
        if self.seed is not None:
            parameters["seed"] = self.seed
        body: dict[str, object] = {"token_ids": list(self.prompt), "sampling_params": parameters}
        return body if self.model is None else {**body, "model": self.model}


@attrs.frozen
class Generated:
    """One completion.

    Attributes:
        tokens: its tokens.
        logprobs: of each, under the distribution that it was sampled from; NaN where the server has no number.
        versions: of each, the policy's version whose weights sampled it, where several may have sampled a completion.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...] = ()

    def cut(self, end: int) -> Generated:
        """Return the first `end` tokens."""
        return Generated(self.tokens[:end], self.logprobs[:end], self.versions[:end])


class OldWeights(ServerUnavailable):
    """A completion that was generated with other weights than the expected ones."""


def read_answer(answer: object, asked: Completion, version: str, where: str, *, continues: bool = False) -> Generated:
    """Return the completion in an answer.

    Args:
        answer: the decoded JSON.
        asked: the request.
        version: of the weights that must have been used.
        where: the server, for errors.
        continues: whether later weights of the same policy may have been used too.

    Raises:
        EngineError: the answer is none to this request.
        OldWeights: other weights were used.
        ServerUnavailable: the server gave up the request.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, Sequence) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise EngineError(f"{where}: one completion was asked for, and the answer has {_count(choices)}")
    choice: Mapping[str, Any] = choices[0]
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise ServerUnavailable(f"{where}: the completion ended with '{reason}'")
    tokens, content = choice.get("token_ids") or (), (choice.get("logprobs") or {}).get("content") or ()
    _check_tokens(tokens, reason, asked, where)
    if [entry.get("token_id") for entry in content] != list(tokens):
        raise EngineError(
            f"{where}: the answer has {len(tokens)} tokens and log-probs of {len(content)}, or of others: no log-prob "
            "belongs to each token"
        )
    versions = _versions(choice.get("weight_versions"), len(tokens), version, where, continues=continues)
    return Generated(tuple(tokens), tuple(_logprob(entry) for entry in content), versions)


def _check_tokens(tokens: Sequence[object], reason: str, asked: Completion, where: str) -> None:
    """Check that a completion has the length, and the end, that was asked for."""
    ends_early = reason == "stop" and bool(tokens) and (tokens[-1] in asked.eos or bool(asked.sampling.stop_sequences))
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise EngineError(f"{where}: the answer has tokens that are no ids: {list(tokens)[:8]}")
    if not (len(tokens) == asked.limit or (0 < len(tokens) < asked.limit and ends_early)):
        raise EngineError(
            f"{where}: the completion has {len(tokens)} tokens, of which {asked.limit} were asked for, and ended with "
            f"'{reason}' at none of the tokens that end one, {list(asked.eos)[:8]}"
        )
    if any(token in asked.eos for token in tokens[:-1]):
        raise EngineError(f"{where}: the completion goes on after a token that ends it: {list(tokens)[:40]}")


def number_of(version: str) -> tuple[str, int]:
    """Return what the names of all weights of one policy begin with, and the policy's version; -1 if it has none."""
    policy, _, number = version.rpartition("-")
    return policy, int(number) if number.isdigit() else -1


def _versions(spans: object, count: int, version: str, where: str, *, continues: bool) -> tuple[int, ...]:
    """Return the policy's version of each token if later ones than `version` may occur; else check that none does."""
    if not isinstance(spans, Sequence) or not spans:
        raise EngineError(
            f"{where}: the answer does not state the version of its weights (weight_versions), which vLLM 0.32 does"
        )
    used = [str(span.get("version")) for span in spans]
    covered = [(span.get("start"), span.get("end")) for span in spans]
    is_whole = [0, *(end for _, end in covered)] == [*(start for start, _ in covered), count]
    (policy, first), numbers = number_of(version), [number_of(name) for name in used]
    is_later = all(each[0] == policy for each in numbers) and first <= numbers[0][1] and numbers == sorted(numbers)
    if not is_whole or not (is_later if continues else set(used) == {version}):
        others = [
            name for name in used if OF_RUN.fullmatch(name) and name.partition("-")[0] != version.partition("-")[0]
        ]
        raise OldWeights(
            f"{where}: weights of version {', '.join(used)} generated the tokens {covered}, and the policy's were "
            f"{version} when they were asked for"
            + ("; those are of another run: use each server in one run at a time" if others else "")
        )
    if not continues:
        return ()
    return tuple(number for (_, number), (start, end) in zip(numbers, covered, strict=True) for _ in range(start, end))


def _logprob(entry: Mapping[str, Any]) -> float:
    value = entry.get("logprob")
    is_number = isinstance(value, (int, float)) and math.isfinite(value) and value > FLOOR
    return float(value) if is_number and value is not None else math.nan


def _count(choices: object) -> str:
    return str(len(choices)) if isinstance(choices, Sequence) else "none"


def changes_of(options: TokenOptions, tokenizer: object) -> dict[str, object]:
    """Return the parameters that state options which are set.

    Raises:
        ConfigError: the options name tokens that the tokenizer has not.
    """
    ids = TokenIds.read(options, tokenizer)
    stated: dict[str, object] = {
        "min_p": options.min_p, "repetition_penalty": options.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in ids.bias.items()},
        "allowed_token_ids": None if ids.allowed is None else sorted(ids.allowed),
    }  # fmt: skip
    of = {"allowed_token_ids": "allowed_tokens"}
    return {name: value for name, value in stated.items() if of.get(name, name) in options.reshaping}


def check_sampling(sampling: SamplingConfig, where: str = "gen", options: TokenOptions = UNCHANGED) -> None:
    """Check that a server can sample with these options of `gen` and of the sampler.

    Raises:
        ConfigError: it cannot.
    """
    if options.min_p and sampling.top_p < 1:
        raise ConfigError(
            f"sampler.min_p = {options.min_p:g} with {where}.top_p = {sampling.top_p:g}: vLLM applies min_p before "
            "top_p, which then keeps other tokens than with sampler: default; leave one of them out"
        )
    if sampling.beta:
        raise ConfigError(
            f"{where}.beta = {sampling.beta:g}: a vLLM server has no Q-heads; set beta to 0, or use sampler: default"
        )
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise ConfigError(
            f"{where}.temperature = {sampling.temperature:g}: vLLM samples at {LEAST_TEMPERATURE} instead; use 0 "
            f"(greedy), or at least {LEAST_TEMPERATURE}"
        )
    if "" in sampling.stop_sequences:
        raise ConfigError(f"{where}.stop_sequences: '' would end every continuation; remove it")


def token_limits(prompts: Sequence[Prompt], max_new_tokens: int, max_length: int) -> list[int]:
    """Return the most new tokens of each prompt, in a context of `max_length` tokens (0 if it has no end).

    Raises:
        DataError: a prompt has no tokens, or leaves no room for a new one, or shows an image, which a server would not
            receive.
    """
    for i, prompt in enumerate(prompts):
        if max(prompt.tokens, default=0) >= FIRST_IMAGE:
            raise DataError(
                f"prompts[{i}] = {prompt.text[-60:]!r} shows an image, and requests to a server have text tokens only: "
                "sample in this process (sampler: default)"
            )
        if not prompt.tokens or 0 < max_length <= len(prompt.tokens):
            raise DataError(
                f"prompts[{i}] = {prompt.text[:60]!r} has {len(prompt.tokens)} tokens: it needs at least one, and must "
                f"leave room for a new one in the policy's context of {max_length}"
            )
    return [min(max_new_tokens, max_length - len(each.tokens)) if max_length else max_new_tokens for each in prompts]


COMPLETIONS_PATH = "/completions"
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
        body: dict[str, object] = {
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


def read_text(answer: object, limit: int, where: str, *, has_tokens: bool = False) -> Text:
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


def _tokens(choice: Mapping[str, object], limit: int, where: str) -> tuple[int, ...]:
    tokens = choice.get("token_ids")
    if not isinstance(tokens, Sequence) or not all(type(each) is int and each >= 0 for each in tokens):
        raise EngineError(
            f"{where}: the completion has no token ids: {_shown(choice)}; remove return_token_ids from sampler.extra"
        )
    if not 0 < len(tokens) <= limit:
        raise EngineError(f"{where}: the completion has {len(tokens)} tokens, and 1 to {limit} were asked for")
    return tuple(tokens)


def _shown(value: object) -> str:
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
