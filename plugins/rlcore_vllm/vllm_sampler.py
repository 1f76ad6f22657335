"""The sampler `vllm`: rollouts from vLLM servers, checked against the policy after every change of its weights."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.training import eval_mode
from rlcore.training.eval_grid import eval_samplings
from rlcore.types import Prompt, Trajectories, to_device
from rlcore_transformers.sampling.stop_sequences import StopSequences
from rlcore_vllm.client import VLLMServer
from rlcore_vllm.config import VLLMConfig
from rlcore_vllm.dispatch import Dispatch
from rlcore_vllm.errors import StaleWeights
from rlcore_vllm.fleet import Fleet
from rlcore_vllm.generation import Completion, Generated, check_sampling, token_limits
from rlcore_vllm.rows import draw_row_seeds, report_parts, stack_rows, stop_end

CHECKED_TOKENS = 8
"""New tokens of each prompt on which the server's log-probs are compared with the policy's."""


class VLLMSampler:
    """Samples from vLLM servers (`rlcore.protocols.Sampler`).

    A column `logprobs` has the server's log-probs where tokens are sampled from softmax(logits / temperature). They are
    those of another program, so that `exact_logprobs` is not set, and trainers compute the policy's own. With top_k,
    top_p or min_new_tokens the column is called `sampling_logprobs`; greedy sampling has neither.

    A server has one version of the weights: rounds that were submitted are collected before these change.

    Args:
        config: the options.
    """

    one_version = True

    def __init__(self, config: VLLMConfig) -> None:
        if not config.url and config.python is None:
            raise ConfigError(
                "sampler = 'vllm': set sampler.url, the address of a running server, or sampler.python, the Python of "
                "an environment with vLLM, in which the run starts a server"
            )
        self.config, self._fleet = config, Fleet(config)
        self._is_full_precision, self._checked = True, ("", 0)
        self._witness: tuple[list[Completion], list[_Known], float] | None = None

    def open(self, run: Any) -> None:
        """Prepare for a run, before its model is built.

        Raises:
            ConfigError: a server cannot sample with the run's options, or lacks an option that it needs.
        """
        check_sampling(run.config.gen)
        for _, sampling in eval_samplings(run.config.gen, run.config.eval.gen):
            check_sampling(sampling, "eval.gen")
        self._is_full_precision = run.ranks.mixed_precision == "no"
        self._fleet.open(run)

    def close(self) -> None:
        """End the server that was started; a later call starts one anew."""
        self._fleet.close()

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
        seeds = draw_row_seeds(len(prompts), generator) if row_seeds is None else row_seeds
        asked = self._prepare(policy, prompts, sampling, seeds)
        batch = self._sample(policy, prompts, asked, sampling, on_batch)
        self._check_weights(policy, prompts, sampling)  # if a server has been started again meanwhile
        return batch

    def submit(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        row_seeds: Sequence[int],
        generator: torch.Generator | None = None,  # noqa: ARG002  (every row has a seed)
    ) -> Future[Trajectories]:
        """Give the servers the policy's weights, check them, and begin to sample (`rlcore_asynchronous`).

        What was submitted before with other weights must have been collected.

        Raises:
            EngineError: no server answers.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        asked, future = self._prepare(policy, prompts, sampling, row_seeds), Future[Trajectories]()
        dispatch = self._dispatch()  # to the servers that have these weights

        def sample() -> None:
            try:
                future.set_result(self._sample(policy, prompts, asked, sampling, None, dispatch))
            except BaseException as error:  # noqa: BLE001  raised again where the rows are collected
                future.set_exception(error)

        threading.Thread(target=sample, name="rlcore-vllm-submitted", daemon=True).start()
        return future

    def collect(self, handle: Future[Trajectories]) -> Trajectories:
        """Wait for what was submitted and return its rows.

        Raises:
            EngineError: no server answers, or an answer cannot be used.
            StaleWeights: a server was started again meanwhile, and its log-probs are not those of before.
        """
        rows = handle.result()
        self._check_again()
        return rows

    def _prepare(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Completion]:
        """Give the servers the policy's weights and check them; return the requests for a round."""
        check_sampling(sampling)
        if len(seeds) != len(prompts):
            raise DataError(f"row_seeds: has {len(seeds)} seeds for {len(prompts)} prompts; give one for each prompt")
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        self._fleet.renew(policy)
        self._fleet.check_room(
            max((len(prompt.tokens) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        )
        self._check_weights(policy, prompts, sampling)
        return self._requests(policy, prompts, limits, seeds, sampling)

    def _requests(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        limits: Sequence[int],
        seeds: Sequence[int],
        sampling: SamplingConfig,
    ) -> list[Completion]:
        eos = policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids
        model, is_greedy = self._fleet.model, not sampling.temperature
        return [
            Completion(prompt.tokens, limit, None if is_greedy else int(seed), sampling, tuple(eos), model)
            for prompt, limit, seed in zip(prompts, limits, seeds, strict=True)
        ]

    def _dispatch(self, servers: Sequence[VLLMServer] | None = None) -> Dispatch:
        fleet, config, given = self._fleet, self.config, self._fleet.servers if servers is None else servers
        return Dispatch(given, fleet.version, fleet.recover, config.concurrency, config.timeout_s)

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

        def batch_of(indices: Sequence[int]) -> Trajectories:
            return _trajectories(policy, [prompts[i] for i in indices], [rows[i] for i in indices], sampling)

        def finish() -> Iterator[int]:
            for row, answer in (dispatch or self._dispatch()).answers(asked):
                rows[row] = _ended(answer, asked[row], stops)
                yield row

        report_parts(finish(), batch_of, sampling.batch_size or len(asked), on_batch)
        return batch_of(range(len(asked)))

    def _check_weights(self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig) -> None:
        """Compare log-probs of a few short continuations with the policy's own, if a server has loaded weights since.

        Raises:
            StaleWeights: they differ by more than the tolerance.
        """
        few = list({prompt.tokens: prompt for prompt in prompts}.values())[: self.config.check_rows]
        loaded = self._fleet.version, self._fleet.num_loads
        if not few or loaded == self._checked:
            return
        plain = evolve(
            SamplingConfig(), temperature=sampling.policy_temperature, max_new_tokens=CHECKED_TOKENS, eos_token_ids=()
        )
        limits = token_limits(few, CHECKED_TOKENS, policy.max_length)
        for server in self._fleet.servers:
            asked = self._requests(policy, few, limits, range(len(few)), plain)
            answers = dict(self._dispatch([server]).answers(asked))
            batch = _trajectories(policy, few, [(answers[i], False) for i in range(len(few))], plain)
            with torch.no_grad(), eval_mode(policy.module):
                own = policy.score(batch, temperature=plain.policy_temperature).logprobs
            own_rows = [row[mask].tolist() for row, mask in zip(own, batch.action_mask, strict=True)]
            tolerance = self._fleet.tolerance(policy, is_full_precision=self._is_full_precision)
            known = [(answers[n].tokens, tuple(row)) for n, row in enumerate(own_rows)]
            self._compare(server, answers, known, tolerance)
            self._witness = asked, known, tolerance
        self._checked = loaded

    def _check_again(self) -> None:
        """Compare the log-probs of a server that was started again with those that the policy had for its weights.

        The policy has learned since. Tokens are compared up to the first one that the server samples otherwise.
        """
        loaded = self._fleet.version, self._fleet.num_loads
        if loaded == self._checked or self._witness is None:
            return
        asked, known, tolerance = self._witness
        for server in self._fleet.servers:
            self._compare(server, dict(self._dispatch([server]).answers(asked)), known, tolerance)
        self._checked = loaded

    def _compare(
        self, server: VLLMServer, answers: Mapping[int, Generated], known: Sequence[_Known], tolerance: float
    ) -> None:
        """Compare the log-probs of a server's answers with the policy's own of the same tokens.

        Raises:
            StaleWeights: they differ by more than the tolerance, or no token is the same.
        """
        gaps = [
            abs(theirs - own)
            for row, (tokens, logprobs) in enumerate(known)
            for theirs, own in zip(answers[row].logprobs[: _alike(answers[row].tokens, tokens)], logprobs, strict=False)
        ]
        worst = max((gap if math.isfinite(gap) else math.inf for gap in gaps), default=math.inf)
        if worst > tolerance:
            raise StaleWeights(
                f"{server}: after new weights (version {self._fleet.version}) its log-probs differ from the "
                f"policy's by up to {worst:.2g} nats, on average {sum(gaps) / max(1, len(gaps)):.2g}, over {len(gaps)} "
                f"tokens of {len(known)} prompts; sampler.tolerance is {tolerance:g}: it still has old weights, or "
                "some of them (such as a head that is tied to the embedding), or computes with less precision; no "
                "rollouts were sampled with them"
            )


_Known = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens of a short continuation, and their log-probs under the policy."""


def _alike(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of first tokens that are the same."""
    both = min(len(tokens), len(others))
    return next((i for i, pair in enumerate(zip(tokens, others, strict=False)) if pair[0] != pair[1]), both)


def _ended(answer: Generated, asked: Completion, stops: StopSequences | None) -> tuple[Generated, bool]:
    """Cut a completion after the token that completes a stop sequence; return whether it ended before its limit."""
    tokens = answer.tokens
    if (end := stop_end(asked.prompt, tokens, stops)) is not None:
        return Generated(tokens[:end], answer.logprobs[:end]), True
    return answer, len(tokens) < asked.limit or tokens[-1] in asked.eos  # shorter: the server saw a stop sequence


def _trajectories(
    policy: Policy, prompts: Sequence[Prompt], rows: Sequence[tuple[Generated, bool]], sampling: SamplingConfig
) -> Trajectories:
    """Return prompts and their completions, on the policy's device."""
    batch = stack_rows(policy, prompts, [answer.tokens for answer, _ in rows], [ended for _, ended in rows])
    if sampling.temperature:
        logprobs = torch.zeros(batch.tokens.shape)
        logprobs[batch.action_mask] = torch.tensor([each for answer, _ in rows for each in answer.logprobs])
        batch = batch.with_columns(**{"logprobs" if sampling.is_plain else "sampling_logprobs": logprobs})
    return batch.each(lambda array: to_device(array, policy.device))
