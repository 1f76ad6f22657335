"""The sampler `ray`: rollouts from actors that hold copies of the policy and sample as the sampler `default` does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import ray
import torch
from torch import Tensor

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy, SamplerTraits
from rlcore.sampling import check_options, draw_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore.training import eval_mode
from rlcore.types import Prompt, Trajectories, tensor_on
from rlcore_engines.ray.config import RayConfig, build_engine
from rlcore_engines.ray.crew import Crew
from rlcore_engines.ray.worker import unpack
from rlcore_transformers.sampling.draw import check_tokens
from rlcore_transformers.sampling.token_options import SamplerConfig

if TYPE_CHECKING:
    from rlcore.training import Run


class RaySampler:
    """Samples with Ray's actors (`rlcore.protocols.Sampler`).

    Every row has its own seed, so that its tokens are those of `default`, whatever the number of actors. With the
    option `engine` actors have another sampler, whose log-probs and limits are the same as in one process.

    Args:
        config: the options.
    """

    def __init__(self, config: RayConfig) -> None:
        self.config, self._crew = config, Crew(config)
        self._options = config.token_options(SamplerConfig)
        self._engine = (
            build_engine(config.engine) if config.engine else None
        )  # answers what it can do; never asked here
        if self._engine is not None:
            self.__signature__ = inspect.signature(self._engine)

    @property
    def draws_from_policy(self) -> bool:
        """Whether no option changes the distribution of the next token."""
        if self._engine is not None:
            return SamplerTraits(self._engine).draws_from_policy
        return not self.config.reshaping

    @property
    def exact_logprobs(self) -> bool:
        """Whether trainers may use the column `logprobs`, as with the sampler `default`."""
        return self.draws_from_policy if self._engine is None else SamplerTraits(self._engine).exact_logprobs

    def check(self, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
        """Check the tokens that options name, before the first step of a run.

        Raises:
            ConfigError: the options name tokens that there are not, or leave none to sample.
        """
        if self._engine is None:
            check_tokens(self.config, policy, samplings)
        else:
            SamplerTraits(self._engine).check(policy, samplings)

    def open(self, run: Run) -> None:
        """Start the actors of a run; they start while its model is built.

        Raises:
            RayError: the cluster cannot be reached.
            ConfigError: the engine cannot sample with the run's options.
        """
        if self._engine is not None and run.config.run.asynchronous:
            raise ConfigError(
                f"sampler.engine with run.asynchronous = {run.config.run.asynchronous}: each round would start the "
                "engines of the actors anew; leave one of them out"
            )
        SamplerTraits(self._engine).open(run)
        self._crew.open(run.ranks)

    def close(self) -> None:
        """End the actors; a later call starts new ones."""
        self._crew.close()

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        logit_mask: Tensor | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Sample one continuation of each prompt, with the columns of the sampler `default`.

        Raises:
            DataError: a prompt has no tokens or fills the context, or there are more or fewer seeds than prompts.
            ConfigError: two options contradict each other.
            ModelError: the policy cannot be sent to another process.
            RayError: actors do not start, or are lost.
        """
        check_options(policy, sampling)
        _check_prompts(prompts, policy.max_length)
        seeds = row_seeds
        if seeds is None and sampling.temperature:
            seeds = draw_seeds(len(prompts), generator)
        if seeds is not None and len(seeds) != len(prompts):
            raise DataError(f"row_seeds: has {len(seeds)} seeds for {len(prompts)} prompts; give one for each prompt")
        version = self._crew.renew(policy)
        if not prompts and self._engine is None:
            return sample(policy, prompts, sampling, logit_mask=logit_mask, options=self._options)
        eos = policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids
        sampling = evolve(sampling, eos_token_ids=tuple(eos))
        mask = None if logit_mask is None else ray.put(logit_mask.cpu())

        def ask(worker: Any, rows: Sequence[int]) -> object:
            own = None if seeds is None or not sampling.temperature else [int(seeds[row]) for row in rows]
            tokens = [prompts[row].tokens for row in rows]
            return worker.sample.remote(version, tokens, sampling, own, mask, self._options)

        parts = _parts(len(prompts), self.config.rows, self.config.num_actors) or [[]]
        found: list[tuple[list[int], Trajectories]] = []
        for rows, packed in self._crew.dispatch(parts, ask).answers():
            found.append((rows, unpack(packed, policy.device)))
            if on_batch is not None and rows:
                with torch.no_grad(), eval_mode(policy.module):
                    on_batch(*found[-1])
        return _joined(found, policy)


def _parts(count: int, rows: int, num_actors: int) -> list[list[int]]:
    """Return the rows of each part: every k-th one, so that long prompts that follow one another are spread."""
    num_parts = min(count, -(-count // rows) if rows else num_actors)
    return [list(range(part, count, num_parts)) for part in range(num_parts)]


def _joined(found: Sequence[tuple[list[int], Trajectories]], policy: Policy) -> Trajectories:
    """Return the rows of all parts in their order."""
    whole = Trajectories.concat([batch for _, batch in found])
    at = torch.tensor([row for rows, _ in found for row in rows]).argsort()
    batch, pad_id = whole.rows(tensor_on(policy.device, at.tolist())), policy.tokenizer.pad_token_id
    padded = batch.tokens.masked_fill(~batch.mask, pad_id if isinstance(pad_id, int) else 0)
    return attrs.evolve(batch, tokens=padded)


def _check_prompts(prompts: Sequence[Prompt], max_length: int) -> None:
    """Check what an actor would refuse by the number of a row in its part.

    Raises:
        DataError: a prompt has no tokens, or fills the context of the policy.
    """
    for i, prompt in enumerate(prompts):
        if not prompt.tokens:
            raise DataError(f"prompts[{i}] = {prompt.text!r}: has no tokens; give at least one (such as BOS)")
        if max_length and len(prompt.tokens) >= max_length:
            raise DataError(
                f"prompts[{i}] has {len(prompt.tokens)} tokens, which leaves no room for a new one in the policy's "
                f"context of {max_length}: shorten it, or set data.max_prompt_tokens"
            )
