"""The sampler `vllm`: rollouts from vLLM servers, checked against the policy after every change of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakSet

import torch

from rlcore.errors import ConfigError
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.training.evaluate import eval_samplings
from rlcore.types import Prompt, Trajectories
from rlcore_engines.pool import begin
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.dispatch import Dispatch
from rlcore_engines.vllm.fleet import Fleet
from rlcore_engines.vllm.generation import Completion, Generated, changes_of, check_sampling, token_limits
from rlcore_engines.vllm.vllm_rows import (
    completions_of,
    cut_end,
    ends_elsewhere,
    report_parts,
    seeds_of,
    trajectories_of,
)
from rlcore_engines.vllm.weight_check import WeightCheck
from rlcore_transformers.sampling.logit_changes import check_tokens
from rlcore_transformers.sampling.token_ids import StopSequences


class VLLMSampler:
    """Samples from vLLM servers (`rlcore.protocols.Sampler`).

    A column `logprobs` has the server's log-probs where tokens are sampled from softmax(logits / temperature). They are
    those of another program, so that `exact_logprobs` is not set, and trainers compute the policy's own. With top_k,
    top_p, min_new_tokens or options on tokens the column is called `sampling_logprobs`; greedy sampling has neither.

    A server has one version of the weights: rounds that were submitted are collected before these change, except with
    the option `continue_responses`, where they go on with the new ones and the rows have a column `token_versions`.

    Args:
        config: the options.
    """

    def __init__(self, config: VLLMConfig) -> None:
        if not config.url and config.python is None:
            raise ConfigError(
                "sampler = 'vllm': set sampler.url, the address of a running server, or sampler.python, the Python of "
                "an environment with vLLM, in which the run starts a server"
            )
        self.config, self._fleet = config, Fleet(config)
        self._weights = WeightCheck(
            self._fleet, config.check_rows, lambda server, asked: dict(self._dispatch([server]).answers(asked))
        )
        self._temperature, self._has_warned = 1.0, False
        self._open = WeakSet[Future[Trajectories]]()
        """What was submitted and not collected."""

    def open(self, run: Any) -> None:
        """Prepare for a run, before its model is built.

        Raises:
            ConfigError: a server cannot sample with the run's options, or lacks an option that it needs.
        """
        check_sampling(run.config.gen, options=self.config)
        for _, sampling in eval_samplings(run.config.gen, run.config.eval.gen):
            check_sampling(sampling, "eval.gen", self.config)
        if self.config.sleep and run.config.run.asynchronous:
            raise ConfigError(
                f"sampler.sleep with run.asynchronous = {run.config.run.asynchronous}: servers sample while the policy "
                "learns; leave one of them out"
            )
        if self.config.continue_responses and not run.config.run.asynchronous:
            raise ConfigError(
                "sampler.continue_responses: no response is under way when the weights change, since run.asynchronous "
                "is 0: set it to 1, or leave the option out"
            )
        self._temperature = run.config.gen.policy_temperature
        self._weights.is_full_precision = run.ranks.mixed_precision == "no"
        self._fleet.open(run)

    @property
    def one_version(self) -> bool:
        """Whether rounds must be collected before the weights change (`AsynchronousSampler`)."""
        return not self.config.continue_responses

    @property
    def draws_from_policy(self) -> bool:
        """Whether no option of the sampler changes the distribution of the next token."""
        return not self.config.reshaping

    def check(self, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
        """Check the tokens that options name, before the first step of a run.

        Raises:
            ConfigError: the options name tokens that there are not, or leave none to sample.
        """
        check_tokens(self.config, policy, samplings)

    def on_rollout(self, run: Any) -> None:
        """Let servers sleep once all processes have sampled, if the run asks for it (`sampler.sleep`).

        No process goes on before they do: it could need the memory, or find them awake for its next prompts.
        """
        if self.config.sleep:
            run.ranks.wait()
            self._fleet.rest()
            run.ranks.wait()

    def on_evaluate(self, run: Any) -> None:
        """Let servers sleep again that an evaluation woke."""
        self.on_rollout(run)

    def close(self) -> None:
        """End the server that was started; a later call starts one anew."""
        self._open.clear()
        self._fleet.close()

    def renew_weights(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        """Give the servers the policy's weights if they have changed, and check them; collective.

        Divided weights are gathered one after another, and completed one block at a time to check them.

        Raises:
            EngineError: no server answers.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        self._fleet.renew(policy)
        self._weights.check(policy, prompts, self._temperature)

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
            EngineError: no server answers, or an answer cannot be used.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        asked = self._prepare(policy, prompts, sampling, seeds_of(len(prompts), row_seeds, generator))
        batch = self._sample(policy, prompts, asked, sampling, on_batch)
        self._weights.check_again()  # if a server has been started again meanwhile
        return batch

    def submit(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        row_seeds: Sequence[int],
        generator: torch.Generator | None = None,
    ) -> Future[Trajectories]:
        """Give the servers the policy's weights, check them, and begin to sample (`rlcore_engines.asynchronous`).

        What was submitted before with other weights must have been collected, or goes on with these
        (`continue_responses`).

        Raises:
            EngineError: no server answers.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        seeds: Sequence[int | None] = seeds_of(len(prompts), row_seeds, generator)
        if self.config.continue_responses:  # vLLM on CPUs ends when it stops a request that has a seed
            seeds = [None] * len(seeds)
        asked = self._prepare(policy, prompts, sampling, seeds)
        dispatch = self._dispatch()  # to the servers that have these weights
        future = begin(partial(self._sample, policy, prompts, asked, sampling, None, dispatch))
        self._open.add(future)
        return future

    def collect(self, handle: Future[Trajectories]) -> Trajectories:
        """Wait for what was submitted and return its rows.

        Raises:
            EngineError: no server answers, or an answer cannot be used, or the rows were collected before.
            StaleWeights: a server was started again meanwhile, and its log-probs are not those of before.
        """
        if handle not in self._open:
            raise EngineError("collect: the rows of this handle were collected before; keep what collect returned")
        rows = handle.result()
        self._weights.check_again()
        self._open.discard(handle)
        return rows

    def _prepare(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, seeds: Sequence[int | None]
    ) -> list[Completion]:
        """Return the requests for a round, from servers that have the policy's weights.

        In a run of several processes they have them already, since `renew_weights` is called before.
        """
        check_sampling(sampling, options=self.config)
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        self._fleet.renew(policy)
        self._fleet.check_room(
            max((len(prompt.tokens) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        )
        self._weights.check(policy, prompts, sampling.policy_temperature)
        changes = changes_of(self.config, policy.tokenizer)
        return completions_of(policy, prompts, limits, seeds, sampling, self._fleet.model, changes)

    def _dispatch(self, servers: Sequence[VLLMServer] | None = None) -> Dispatch:
        fleet, config, given = self._fleet, self.config, self._fleet.servers if servers is None else servers
        return Dispatch(
            given, fleet.version, fleet.recover, config.concurrency, config.timeout_s,
            continues=config.continue_responses and servers is None,
        )  # fmt: skip

    def _sample(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        asked: Sequence[Completion],
        sampling: SamplingConfig,
        on_batch: Callable[[list[int], Trajectories], None] | None,
        dispatch: Dispatch | None = None,
    ) -> Trajectories:
        stops = StopSequences(policy.tokenizer, sampling.stop_sequences) if sampling.stop_sequences else None
        rows: dict[int, tuple[Generated, bool]] = {}
        changes = changes_of(self.config, policy.tokenizer)

        def batch_of(indices: Sequence[int]) -> Trajectories:
            own, found = [prompts[i] for i in indices], [rows[i] for i in indices]
            return trajectories_of(policy, own, found, sampling, changes)

        def finish() -> Iterator[int]:
            for row, answer in (dispatch or self._dispatch()).answers(asked):
                rows[row] = cut_end(answer, asked[row], stops)
                if not self._has_warned and ends_elsewhere(answer, asked[row], stops):
                    self._has_warned = True
                yield row

        report_parts(finish(), batch_of, sampling.batch_size or len(asked), on_batch)
        return batch_of(range(len(asked)))
