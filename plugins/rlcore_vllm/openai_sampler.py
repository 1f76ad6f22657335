"""The sampler `openai`: completions from a server with the API of OpenAI, whose model is not the policy that learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError
from rlcore.logging import get_logger
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.training.eval_grid import eval_samplings
from rlcore.types import Prompt, Trajectories, to_device
from rlcore_transformers.data.tokens import decode, encode
from rlcore_vllm.completions import Text, TextRequest, check_options, read_text
from rlcore_vllm.generation import token_limits
from rlcore_vllm.openai_config import OpenAIConfig
from rlcore_vllm.rows import report_parts, seeds_of, stack_rows
from rlcore_vllm.text_client import TextServer
from rlcore_vllm.text_rows import TextRows, prompt_texts

PROBE = "the quick brown fox jumps over the lazy dog"
"""Text whose token ids a server has to echo as this text before it is sent token ids."""
OF_SAMPLER = ("min_p", "repetition_penalty")
"""Options of the sampler that requests state, if `extra` allows these fields."""
log = get_logger("openai")


class OpenAISampler:
    """Samples from any server with `/v1/completions` (`rlcore.protocols.Sampler`).

    It does not follow the weights of the policy, and returns no log-probs. Trainers whose rounds are rollouts are
    refused, unless they declare `off_policy`.

    Completions are text, which the policy's tokenizer tokenises again: their tokens need not be those that were
    sampled, and a row may be cut that has more of them than its limit. A completion that the server ended has what
    ended it appended: the stop sequence or the EOS token that the server states. If it states nothing, that is the
    first stop sequence, or, if there is none, the policy's first EOS token.

    Args:
        config: the options.

    Raises:
        ConfigError: no address, or no model, is set.
    """

    draws_from_policy = False

    def __init__(self, config: OpenAIConfig) -> None:
        for name in ("url", "model"):
            if not getattr(config, name):
                raise ConfigError(f"sampler = 'openai': set sampler.{name}; sampler.url and sampler.model are required")
        self.config = config
        self._sends_tokens: bool | None = None if config.prompts == "auto" else config.prompts == "tokens"
        self._logged = set[str]()

    @cached_property
    def _server(self) -> TextServer:
        return TextServer(self.config)

    def open(self, run: Any) -> None:
        """Prepare for a run, before its model is built.

        Raises:
            ConfigError: the trainer needs samples of the policy, or the server cannot sample with the run's options.
            EngineError: the server does not answer, or its answer is none of completions.
        """
        _check_trainer(run.config.trainer["name"])
        samplings = [("gen", run.config.gen)]
        samplings += [("eval.gen", each) for _, each in eval_samplings(run.config.gen, run.config.eval.gen)]
        for where, sampling in samplings:
            check_options(sampling, self.config.extra, where)
        self._warn_of_model()
        for sampling, where in {sampling: where for where, sampling in reversed(samplings)}.items():
            self._try(sampling, where)

    def renew_weights(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        """Read no weights, because the server has its own."""

    def _try(self, sampling: SamplingConfig, where: str) -> None:
        """Request one token with these options, so that a refusal of the server ends the run before its first step."""
        sends_tokens, seed = self.config.prompts == "tokens", 0 if sampling.temperature else None
        asked = TextRequest([0] if sends_tokens else "a", 1, seed, sampling, sampling.eos_token_ids or (0,))
        answer, refusal = self._server.try_once(self._body(asked))
        if answer is None:
            what = f"with the options of {where}" + (" and token ids as its prompt" if sends_tokens else "")
            raise ConfigError(
                f"{self._server}: refuses a request {what}: {refusal}; change these options"
                + (", or set sampler.prompts to text" if sends_tokens else "")
                + (f", or remove what the server does not accept from sampler.extra = {list(self.config.extra)}"
                   if self.config.extra else "")
            )  # fmt: skip
        self._read(answer, 1)

    def _body(self, asked: TextRequest) -> dict[str, Any]:
        of_sampler = {name: getattr(self.config, name) for name in OF_SAMPLER if name in self.config.extra}
        return asked.body(self.config.model, self.config.extra) | of_sampler

    def _read(self, answer: Any, limit: int) -> Text:
        return read_text(answer, limit, str(self._server), has_tokens="return_token_ids" in self.config.extra)

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Sample one continuation of each prompt.

        Raises:
            EngineError: the server does not answer, or an answer cannot be used.
            ConfigError: the server cannot sample with these options, or refuses the key or the model.
            DataError: the server refuses a prompt.
        """
        check_options(sampling, self.config.extra)
        seeds = seeds_of(len(prompts), row_seeds, generator)
        self._warn_of_model()
        asked = self._requests(policy, prompts, seeds, sampling)
        bodies = [self._body(each) for each in asked]
        make = TextRows(policy.tokenizer, sampling, str(self._server), self._warn_once)
        rows: dict[int, tuple[Sequence[int], bool]] = {}

        def batch_of(indices: Sequence[int]) -> Trajectories:
            chosen, own = [rows[i] for i in indices], [prompts[i] for i in indices]
            batch = stack_rows(policy, own, [row for row, _ in chosen], [ended for _, ended in chosen])
            return batch.each(lambda array: to_device(array, policy.device))

        def finish() -> Iterator[int]:
            for row, answer in self._server.answers(bodies):
                rows[row] = make(prompts[row], self._read(answer, asked[row].limit), asked[row])
                yield row

        report_parts(finish(), batch_of, sampling.batch_size or len(asked), on_batch)
        return batch_of(range(len(asked)))

    def _requests(
        self, policy: Policy, prompts: Sequence[Prompt], seeds: Sequence[int], sampling: SamplingConfig
    ) -> list[TextRequest]:
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        eos = policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids
        given: Sequence[str | Sequence[int]] = [prompt.tokens for prompt in prompts]
        if prompts and not self._takes_tokens(policy):
            given = prompt_texts(policy.tokenizer, [prompt.tokens for prompt in prompts])
        return [
            TextRequest(prompt, limit, int(seed) if sampling.temperature else None, sampling, tuple(eos))
            for prompt, limit, seed in zip(given, limits, seeds, strict=True)
        ]

    def _takes_tokens(self, policy: Policy) -> bool:
        """Return whether prompts are sent as token ids; asks the server once if the options leave it open."""
        if self._sends_tokens is None:
            self._sends_tokens = self._echoes_tokens(policy.tokenizer)
            log.info("prompts are sent", form="token ids" if self._sends_tokens else "text", server=str(self._server))
        return self._sends_tokens

    def _echoes_tokens(self, tokenizer: Any) -> bool:
        try:
            (ids,) = encode(tokenizer, [PROBE])
        except DataError:
            return False
        (expected,) = decode(tokenizer, [ids], skip_special_tokens=False)
        asked = TextRequest(ids, 1, None, evolve(SamplingConfig(), temperature=0.0))
        answer, _ = self._server.try_once({**asked.body(self.config.model), "echo": True})
        if answer is None:
            return False
        text = read_text(answer, len(PROBE) + 1, str(self._server)).text
        return len(ids) > 1 and text.strip().startswith(expected.strip())

    def _warn_of_model(self) -> None:
        self._warn_once(
            "completions are those of the server's model: they do not follow the policy's weights, in evaluations "
            "neither", model=self.config.model, server=self.config.url,
        )  # fmt: skip

    def _warn_once(self, event: str, **fields: Any) -> None:
        if event not in self._logged:
            self._logged.add(event)
            log.warning(event, **fields)


def _check_trainer(name: str) -> None:
    """Refuse a trainer whose rounds are rollouts, unless it learns from samples of other distributions.

    Raises:
        ConfigError: it is such a trainer.
    """
    trainer: Any = registries().trainers.get(name).target()
    if "prompts" in trainer.needs and not getattr(trainer, "off_policy", False):
        raise ConfigError(
            f"sampler = 'openai': trainer '{name}' learns from samples of the policy, and the server's model is not "
            "the policy: ratios and advantages of its samples would be wrong; use sampler: default or vllm, or a "
            "trainer that declares off_policy, such as rft"
        )
