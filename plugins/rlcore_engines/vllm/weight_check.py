"""The check that servers have the policy's weights: their log-probs of a few short continuations are the policy's.

And those of the continuations of the check before have changed as the policy's have.

Also in this file: whether a server's log-probs have followed a change of the policy's weights; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from rlcore.config import evolve
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.training import by_block, eval_mode
from rlcore.types import Prompt
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.connection import StaleWeights
from rlcore_engines.vllm.fleet import Fleet
from rlcore_engines.vllm.generation import Completion, Generated, number_of
from rlcore_engines.vllm.vllm_rows import completions_of, trajectories_of

EVIDENCE = 100.0
"""How many times the mean square of the usual difference the squares must speak for the weights before. The difference
of a normally distributed error would have to be 7 standard deviations for a false alarm."""
LEAST = 1e-6
"""Differences of log-probs that rounding in float32 may cause, in nats."""
CHANGED = 1e-3
"""A change of the policy's log-probs, in nats, after which not all of a server's can be the same bits as before."""


@attrs.frozen
class Tokens:
    """Log-probs of the same tokens by a server and by the policy, before a change of the weights and after it."""

    served_before: Sequence[float]
    served: Sequence[float]
    own_before: Sequence[float]
    own: Sequence[float]


def follows(tokens: Tokens, usual: float) -> bool:
    """Return whether a server's log-probs have changed as the policy's, or cannot be told from such.

    Args:
        tokens: the log-probs.
        usual: mean square of the differences between the server's and the policy's log-probs before the change.
    """
    changes = [now - before for now, before in zip(tokens.served, tokens.served_before, strict=True)]
    wanted = [now - before for now, before in zip(tokens.own, tokens.own_before, strict=True)]
    if not any(changes) and max(map(abs, wanted), default=0.0) > CHANGED:
        return False
    from_old = sum(change**2 for change in changes)
    from_new = sum((change - want) ** 2 for change, want in zip(changes, wanted, strict=True))
    return from_new - from_old <= EVIDENCE * (usual + LEAST**2)


CHECKED_TOKENS = 8
"""New tokens of each prompt on which log-probs are compared."""
Known = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens of a short continuation, and their log-probs under the policy."""


@attrs.frozen
class Passed:
    """The rows of a check that has passed.

    Attributes:
        policy: which of the policies was checked; another one is not compared with it.
        temperature: at which log-probs were compared.
        prompts: the prompts.
        asked: their requests.
        answers: each server's answers.
        known: each server's tokens, and their log-probs under the policy.
    """

    policy: str
    temperature: float
    prompts: Sequence[Prompt]
    asked: Sequence[Completion]
    answers: Mapping[VLLMServer, Mapping[int, Generated]]
    known: Mapping[VLLMServer, Sequence[Known]]


class WeightCheck:
    """Compares log-probs after each change of the weights, and whenever a server has loaded them again.

    Args:
        fleet: the servers.
        num_rows: the number of prompts; 0 checks nothing.
        ask: returns a server's answers to requests, by their index.

    Attributes:
        is_full_precision: whether the policy scores in the precision of its weights.
    """

    def __init__(
        self, fleet: Fleet, num_rows: int, ask: Callable[[VLLMServer, Sequence[Completion]], Mapping[int, Generated]]
    ) -> None:
        self._fleet, self._num_rows, self._ask = fleet, num_rows, ask
        self.is_full_precision = True
        self._passed, self._num_loads = "", 0
        self._witness: tuple[list[Completion], list[Known], float] | None = None
        self._before: Passed | None = None

    def check(self, policy: Policy, prompts: Sequence[Prompt], temperature: float) -> None:
        """Compare log-probs if the weights have changed since the last call; collective then.

        Args:
            policy: the policy, whose divided weights are completed one block at a time.
            prompts: prompts of this process; without any, others are made up.
            temperature: at which log-probs are compared.

        Raises:
            StaleWeights: they differ by more than the tolerance, or are nearer to those of the weights before.
        """
        version, num_loads = self._fleet.version, self._fleet.num_loads
        if not self._num_rows or self._passed == version:
            return
        room = min((each for each in (policy.max_length, *self._rooms()) if each), default=0)
        plain = evolve(SamplingConfig(), temperature=temperature, max_new_tokens=CHECKED_TOKENS, eos_token_ids=())
        few = self._choose(policy, prompts, room)
        limits = [min(CHECKED_TOKENS, room - len(each.tokens)) if room else CHECKED_TOKENS for each in few]
        asked = completions_of(policy, few, limits, range(len(few)), plain, self._fleet.model)
        before = self._rows_before(version, temperature, room)
        prompts, requests = ([*few, *before.prompts], [*asked, *before.asked]) if before else (few, asked)
        answers = [(server, self._ask(server, requests)) for server in self._fleet.servers]
        scored = list[list[Known]]()
        with by_block(policy), torch.no_grad(), eval_mode(policy.module):
            for _, found in answers:
                batch = trajectories_of(policy, prompts, [(found[i], False) for i in range(len(prompts))], plain)
                own = policy.score(batch, temperature=temperature).logprobs
                rows = [row[mask].tolist() for row, mask in zip(own, batch.action_mask, strict=True)]
                scored.append([(found[i].tokens, tuple(row)) for i, row in enumerate(rows)])
        tolerance = self._fleet.tolerance(policy, is_full_precision=self.is_full_precision)
        for (server, found), known in zip(answers, scored, strict=True):
            self._compare(server, found, known, tolerance)
            if before is not None and server in before.answers:
                self._compare_change(server, before, found, known, len(few))
            self._witness = asked, known[: len(few)], tolerance
        known_by = {server: known[: len(few)] for (server, _), known in zip(answers, scored, strict=True)}
        self._before = Passed(number_of(version)[0], temperature, few, asked, dict(answers), known_by)
        self._passed, self._num_loads = version, num_loads

    def check_again(self) -> None:
        """Compare the log-probs of servers that were started again with those that the policy had for its weights.

        The policy may have learned since. Tokens are compared up to the first one that the server samples otherwise.

        Raises:
            StaleWeights: they differ by more than the tolerance.
        """
        num_loads = self._fleet.num_loads
        if num_loads == self._num_loads or self._witness is None:
            return
        asked, known, tolerance = self._witness
        for server in self._fleet.servers:
            self._compare(server, self._ask(server, asked), known, tolerance)
        self._num_loads = num_loads

    def _rooms(self) -> list[int]:
        return [server.max_model_len for server in self._fleet.servers]

    def _rows_before(self, version: str, temperature: float, room: int) -> Passed | None:
        """Return the rows of the last check if they can be asked again; None if not."""
        before = self._before
        if before is None or (before.policy, before.temperature) != (number_of(version)[0], temperature):
            return None
        fits = all(not room or len(each.prompt) + each.limit <= room for each in before.asked)
        return before if fits else None

    def _choose(self, policy: Policy, prompts: Sequence[Prompt], room: int) -> list[Prompt]:
        """Return a few different prompts with room for a new token; one with a single token if there are none."""
        fitting = {each.tokens: each for each in prompts if each.tokens and not 0 < room <= len(each.tokens)}
        return list(fitting.values())[: self._num_rows] or [Prompt("", (next(iter(policy.eos_token_ids), 0),))]

    def _compare(
        self, server: VLLMServer, answers: Mapping[int, Generated], known: Sequence[Known], tolerance: float
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

    def _compare_change(
        self, server: VLLMServer, before: Passed, answers: Mapping[int, Generated], known: Sequence[Known], first: int
    ) -> None:
        """Compare how a server's log-probs have changed with how the policy's have, on tokens that are the same.

        Args:
            server: the server.
            before: the rows of the last check.
            answers: the server's answers; those to the same requests begin at `first`.
            known: their tokens, and the log-probs under the policy.
            first: see there.

        Raises:
            StaleWeights: the server's are nearer to those of the weights before.
        """
        columns: list[tuple[float, float, float, float]] = []
        gaps: list[float] = []
        for row, (tokens, own_before) in enumerate(before.known[server]):
            served_before, (now, own) = before.answers[server][row].logprobs, known[first + row]
            both = list(zip(served_before, answers[first + row].logprobs, own_before, own, strict=False))
            columns += both[: _alike(tokens, now)]
            gaps += [theirs - ours for theirs, ours in zip(served_before, own_before, strict=True)]
        tokens_ = Tokens(*(list(each) for each in zip(*columns, strict=True))) if columns else Tokens([], [], [], [])
        if not follows(tokens_, sum(gap**2 for gap in gaps) / max(1, len(gaps))):
            raise StaleWeights(
                f"{server}: after new weights (version {self._fleet.version}) its log-probs of {len(columns)} tokens "
                f"have changed by {_mean(tokens_.served, tokens_.served_before):.2g} nats on average, and the policy's "
                f"by {_mean(tokens_.own, tokens_.own_before):.2g}: they are nearer to those of the weights before; the "
                "update has not reached it, or not all of it; no rollouts were sampled with them"
            )


def _mean(values: Sequence[float], others: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(values, others, strict=True)) / max(1, len(values))


def _alike(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return the number of first tokens that are the same."""
    both = min(len(tokens), len(others))
    return next((i for i, pair in enumerate(zip(tokens, others, strict=False)) if pair[0] != pair[1]), both)
