"""The sampler `vllm`: rollouts from vLLM servers, checked against the policy after every change of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        self._is_full_precision, self._checked = True, ("", 0)

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
        check_sampling(sampling)
        seeds = draw_row_seeds(len(prompts), generator) if row_seeds is None else row_seeds
        if len(seeds) != len(prompts):
            raise DataError(f"row_seeds: has {len(seeds)} seeds for {len(prompts)} prompts; give one for each prompt")
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        self._fleet.renew(policy)
        self._fleet.check_room(
            max((len(prompt.tokens) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        )
        self._check_weights(policy, prompts, sampling)
        asked = self._requests(policy, prompts, limits, seeds, sampling)
        batch = self._sample(policy, prompts, asked, sampling, on_batch)
        self._check_weights(policy, prompts, sampling)  # if a server has been started again meanwhile
        return batch

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

    def _dispatch(self) -> Dispatch:
        fleet, config = self._fleet, self.config
        return Dispatch(fleet.servers, fleet.version, fleet.recover, config.concurrency, config.timeout_s)

    def _sample(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        asked: Sequence[Completion],
        sampling: SamplingConfig,
        on_batch: Callable[[list[int], Trajectories], None] | None,
    ) -> Trajectories:
        stops = StopSequences(policy.tokenizer, sampling.stop_sequences) if sampling.stop_sequences else None
        rows: dict[int, tuple[Generated, bool]] = {}

        def batch_of(indices: Sequence[int]) -> Trajectories:
            return _trajectories(policy, [prompts[i] for i in indices], [rows[i] for i in indices], sampling)

        def finish() -> Iterator[int]:
            for row, answer in self._dispatch().answers(asked):
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
            dispatch = Dispatch(
                [server], self._fleet.version, self._fleet.recover, self.config.concurrency, self.config.timeout_s
            )
            asked = self._requests(policy, few, limits, range(len(few)), plain)
            answers = dict(dispatch.answers(asked))
            batch = _trajectories(policy, few, [(answers[i], False) for i in range(len(few))], plain)
            with torch.no_grad(), eval_mode(policy.module):
                own = policy.score(batch, temperature=plain.policy_temperature).logprobs
            gap = (own - batch["logprobs"])[batch.action_mask].abs()
            worst = float(gap.nan_to_num(float("inf")).max())
            tolerance = self._fleet.tolerance(policy, is_full_precision=self._is_full_precision)
            if worst > tolerance:
                raise StaleWeights(
                    f"{server}: after new weights (version {self._fleet.version}) its log-probs differ from the "
                    f"policy's by up to {worst:.2g} nats, on average {float(gap.mean()):.2g}, over {len(gap)} tokens "
                    f"of {len(few)} prompts; sampler.tolerance is {tolerance:g}: it still has old weights, or some "
                    "of them (such as a head that is tied to the embedding), or computes with less precision; no "
                    "rollouts were sampled with them"
                )
        self._checked = loaded


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
