"""The loop of RFT: sample a round into the history, then imitate its best responses, one pass and one yield a step.

Also in this file: the responses of the last rounds, each distinct one once, with the number of times it was sampled.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from rlcore.protocols import Policy
from rlcore.training import Order, Round, Run, disable_dropout
from rlcore.types import Metrics, Prompt, State, Trajectories, tensor_on
from rlcore_rft.config import RFTConfig, check, workload
from rlcore_rft.loss import first_indices, nll, percentile, thresholds


class History:
    """Hold the scored responses of the last rounds, on the CPU; older ones are dropped.

    They have the columns `prompts` (long[B], the index of the prompt), `scores` (float[B]), `keys` (long[B], equal for
    equal sequences) and `counts` (long[B]).

    Args:
        num_rounds: so many rounds are kept.
        deal: makes a round of rows that every process holds (`Run.deal`).
    """

    def __init__(self, num_rounds: int, deal: Callable[[Trajectories], Round]) -> None:
        self._rounds: deque[Round] = deque(maxlen=num_rounds)
        self._deal = deal

    def add(self, batch: Round) -> None:
        """Add a round, with columns `prompts` and `scores`; its other columns are not kept."""
        keys = batch.all(sequence_keys(batch.own).to(batch.own.tokens.device))
        batch = batch.with_columns(keys=keys).with_only("prompts", "scores", "keys").to("cpu")
        every = zip(batch["prompts"].tolist(), batch["scores"].tolist(), batch["keys"].tolist(), strict=True)
        indices, counts = first_indices(list(every))
        self._rounds.append(batch.rows(indices).with_columns(counts=counts))

    @property
    def responses(self) -> Round:
        """Return all responses, oldest first; one that was sampled in several rounds appears once for each."""
        return Round.join(list(self._rounds))

    def state_dict(self) -> State:
        """Return the responses of all rounds."""
        return {"rounds": [attrs.asdict(each.whole().to("cpu"), recurse=False) for each in self._rounds]}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned; if it has more rounds than fit, the oldest are dropped."""
        self._rounds.clear()
        self._rounds.extend(self._deal(Trajectories(**rows)) for rows in state["rounds"])


def distinct(batch: Round) -> Round:
    """Return each distinct sequence of tokens once, whatever its columns are."""
    return batch.rows(first_indices(batch["keys"].tolist())[0])


def sequence_keys(rows: Trajectories) -> Tensor:
    """Return a digest of each sequence, of its tokens without padding and which of them were chosen: long[B]."""
    keys = []
    for tokens, chosen, real in zip(rows.tokens.cpu(), rows.action_mask.cpu(), rows.mask.cpu(), strict=True):
        text = tokens[real].numpy().tobytes() + chosen[real].numpy().tobytes()
        keys.append(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True))
    return torch.tensor(keys, dtype=torch.long)


class RFTTrainer:
    """Reward-ranked fine-tuning (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("reward_fn", "prompts")
    off_policy = True
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}
    headline = ("eval/reward/mean", "loss/total", "rft/threshold_mean", "rft/kept_fraction", "rft/unique")
    workload = staticmethod(workload)

    def __init__(self, config: RFTConfig, run: Run) -> None:
        self.config, self.run = config, run
        self._policy = run.build()
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.num_prompts = min(config.prompts or len(run.prompts), len(run.prompts))
        check(config, self.num_prompts, run.ranks.world)
        self.order = run.data.order(run.prompts)
        self.history = History(config.history, run.deal)
        self.num_rounds, self.num_improved = 0, config.improve_steps
        run.plan_steps(-(-len(run.prompts) // self.num_prompts) * config.improve_steps)
        most = self.num_prompts * config.generations * config.history
        self.updates_per_step = -(-most // config.batch_size)
        self.updater = run.updater(self._policy, config.optimizer, updates_per_step=self.updates_per_step)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each improve step; the first one of a round samples before it."""
        while True:
            metrics: Metrics = {}
            if self.num_improved >= self.config.improve_steps:
                metrics = self.grow()
                self.num_rounds, self.num_improved = self.num_rounds + 1, 0
            chosen, selected = self.select()
            metrics |= selected
            if len(chosen):
                metrics |= self.imitate(chosen)
            self.num_improved += 1
            own = {"rft/round": float(self.num_rounds), "lr": self.updater.lr, "progress/epoch": self.order.epoch}
            yield metrics | own

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def grow(self) -> Metrics:
        """Sample and score `generations` responses to each prompt of a round."""
        run, numbers = self.run, self._take(self.order)
        prompts = [run.prompts[number] for number in numbers]
        batch = run.rollout(prompts)
        batch = batch.with_columns(prompts=tensor_on(batch["prompt"].device, numbers)[batch["prompt"]])
        self.history.add(batch)
        run.observers.on_rollout(run, batch.own)
        return batch.metrics

    def upcoming(self, steps: int) -> list[tuple[list[Prompt], int]]:
        """Return the calls of `run.rollout` in the next steps, for `run.asynchronous`."""
        order, rounds, improved = copy.copy(self.order), [], self.num_improved
        for _ in range(steps):
            if improved >= self.config.improve_steps:
                rounds.append(([self.run.prompts[number] for number in self._take(order)], 1))
                improved = 0
            improved += 1
        return rounds

    def _take(self, order: Order) -> list[int]:
        """Return the indices of the prompts of the next round, each `generations` times."""
        return [number for number in order.take_within_pass(self.num_prompts) for _ in range(self.config.generations)]

    def select(self) -> tuple[Round, Metrics]:
        """Return the best responses of the history, without duplicates."""
        config, responses = self.config, self.history.responses
        scores, counts = responses["scores"], responses["counts"]
        prompts = responses["prompts"].unique(return_inverse=True)[1]
        share = percentile(
            self.num_improved, config.improve_steps, start=config.start_percentile, end=config.end_percentile
        )
        limits = thresholds(scores, counts, prompts, percentile=share)
        passed = scores.double() >= limits[prompts]
        chosen = distinct(responses.rows(passed))
        if not len(chosen):
            self.run.warn_once(
                "rft", "nothing to imitate, so a step learns nothing: all scores are equal, or within 0.001 of each "
                "other; give a reward that tells responses apart",
                lowest=float(scores.min()), highest=float(scores.max()),
            )  # fmt: skip
        kept = int(counts[passed].sum())
        return chosen, {
            "rft/percentile": share,
            "rft/threshold_mean": float(limits.mean()),
            "rft/kept": float(kept),
            "rft/kept_fraction": kept / int(counts.sum()),
            "rft/unique": float(len(chosen)),
        }

    def imitate(self, chosen: Round) -> Metrics:
        """Make one pass over the chosen responses, as supervised fine-tuning does over demonstrations."""
        config, begun, meter = self.config, time.perf_counter(), self.updater.meter()
        step = self.num_rounds * config.improve_steps + self.num_improved
        seed = self.run.config.run.seed * 1_000_003 + step
        self.updater.clock.spread(-(-len(chosen) // config.batch_size))
        for minibatch in chosen.to(self.updater.device).minibatches(config.batch_size, seed=seed):
            self.updater.accumulate(
                minibatch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            self.updater.step(meter)
        return meter.means() | {"time/update_s": time.perf_counter() - begun}

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        losses = nll(self._policy.score(part, temperature=self.run.temperature).logprobs)
        return losses, {"loss/total": losses}

    def state_dict(self) -> State:
        """Return the optimizer, the order of prompts, the history, and the progress of the current round."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.order.state_dict(),
            "history": self.history.state_dict(),
            "num_rounds": self.num_rounds,
            "num_improved": self.num_improved,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.history.load_state_dict(state["history"])
        self.num_rounds, self.num_improved = state["num_rounds"], state["num_improved"]
