"""Log-probs of a batch's tokens from a server with the API of OpenAI that returns those of a prompt, as vLLM does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.errors import ConfigError, ModelError
from rlcore.types import Trajectories
from rlcore_distill.config import ServerOptions
from rlcore_distill.teachers import check_texts

if TYPE_CHECKING:
    from rlcore.protocols import Tokenizer

try:
    from rlcore_engines.vllm.config import OpenAIConfig
    from rlcore_engines.vllm.openai_sampler import TextServer
except ImportError as error:
    raise ConfigError(
        "trainer.server: the client of servers is part of rlcore-engines, which is not installed: "
        "pip install 'rlcore-distill[server]'"
    ) from error

SECTION = "trainer.server"


class ServerLogprobs:
    """Requests the most likely tokens at each chosen token of a batch, with one request for each sequence.

    A request has the sequence as the prompt, as token ids, and the field `prompt_logprobs`, which vLLM accepts. The
    tokens of the first answer are compared with those of the policy's tokenizer.

    Args:
        options: the options.
        tokenizer: the policy's tokenizer.

    Raises:
        ConfigError: the address or the key is none.
    """

    def __init__(self, options: ServerOptions, tokenizer: Tokenizer) -> None:
        self.options, self._tokenizer, self._is_checked = options, tokenizer, False
        self._server = TextServer(
            OpenAIConfig(
                url=options.url, model=options.model, key_env=options.key_env, concurrency=options.concurrency,
                timeout_s=options.timeout_s, retries=options.retries,
            ),
            section=SECTION,
        )  # fmt: skip

    def __call__(self, part: Trajectories) -> tuple[Tensor, Tensor]:
        """Return ids, long[N, k], and log-probs, float[N, k], of the most likely tokens at each chosen token.

        Raises:
            EngineError: the server does not answer.
            ConfigError: the server has another tokenizer, or refuses the key or the model.
            DataError: the server refuses a sequence, or a prompt shows an image.
            ModelError: an answer has no log-probs of the prompt, or fewer than were requested.
        """
        check_texts(part, self._tokenizer, f"{SECTION}.url")
        rows = [i for i, count in enumerate(part.num_actions.tolist()) if count]
        sequences = {i: part.tokens[i][part.mask[i]].tolist() for i in rows}
        bodies = [self._body(sequences[i]) for i in rows]
        found: dict[int, list[tuple[list[int], list[float]]]] = {}
        for number, answer in self._server.answers(bodies):
            i = rows[number]
            places = part.action_mask[i][part.mask[i]].nonzero()[:, 0].tolist()
            found[i] = self._read(answer, sequences[i], places)
        every = [each for i in rows for each in found[i]]
        k = self.options.top_k
        ids = torch.tensor([ids for ids, _ in every], dtype=torch.long).view(-1, k)
        return ids, torch.tensor([logprobs for _, logprobs in every], dtype=torch.float32).view(-1, k)

    def _body(self, tokens: Sequence[int]) -> dict[str, object]:
        return {
            "model": self.options.model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0.0,
            "prompt_logprobs": self.options.top_k,
        }  # fmt: skip

    def _read(
        self, answer: object, tokens: Sequence[int], places: Sequence[int]
    ) -> list[tuple[list[int], list[float]]]:
        """Return ids and log-probs of the most likely tokens at the given places of a sequence."""
        choices = answer.get("choices") if isinstance(answer, Mapping) else None
        choice = choices[0] if isinstance(choices, Sequence) and choices and isinstance(choices[0], Mapping) else {}
        given = choice.get("prompt_logprobs")
        if not isinstance(given, Sequence) or len(given) != len(tokens):
            has = "none" if given is None else f"{len(given) if isinstance(given, Sequence) else given!r:.40}"
            raise ModelError(
                f"{self._server}: {len(tokens)} tokens were sent, and the answer has prompt_logprobs of {has}; the "
                "server must return prompt_logprobs, as vLLM's /v1/completions does"
            )
        if not self._is_checked:
            self._check_tokens(tokens, given)
            self._is_checked = True
        return [self._most_likely(given[place], place) for place in places]

    def _most_likely(self, given: Any, place: int) -> tuple[list[int], list[float]]:
        k = self.options.top_k
        try:
            pairs = [(int(number), float(each["logprob"])) for number, each in given.items()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self._server}: the log-probs of token {place} are no mapping from token ids to {{logprob}}: "
                f"{given!r:.200}"
            ) from error
        kept = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]
        if len(kept) < k:
            raise ModelError(
                f"{self._server}: {k} tokens were requested at token {place}, and the answer names {len(kept)}; lower "
                f"{SECTION}.top_k"
            )
        if not all(math.isfinite(logprob) and logprob < 1e-3 for _, logprob in kept):
            raise ModelError(f"{self._server}: a log-prob of token {place} is none: {kept!r:.200}")
        return [number for number, _ in kept], [logprob for _, logprob in kept]

    def _check_tokens(self, tokens: Sequence[int], given: Sequence[Any]) -> None:
        """Compare the text of each token of a sequence, where the server states it, with the policy's tokenizer.

        Raises:
            ConfigError: one differs.
        """
        ours = self._tokenizer.decode(
            [[token] for token in tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        for token, own, each in zip(tokens, ours, given, strict=True):
            entry = each.get(str(token)) if isinstance(each, Mapping) else None
            theirs = entry.get("decoded_token") if isinstance(entry, Mapping) else None
            if isinstance(theirs, str) and "\ufffd" not in theirs + own and theirs.strip() != own.strip():
                raise ConfigError(
                    f"{SECTION}.model = '{self.options.model}': the teacher has another tokenizer than the policy: "
                    f"token {token} is {theirs!r:.40} of the teacher and {own!r:.40} of the policy; serve a model of "
                    "the policy's family"
                )
