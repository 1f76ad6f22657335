"""Scripted rollouts, independent of the policy and the number of processes, with or without extra padding.

Also in this file: one bad number, such as NaN, put into what a trainer computes with.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlcore.ops import eval_mode
from rlcore.protocols import Divisible, Policy
from rlcore.ranks import Ranks
from rlcore.settings import SamplingConfig
from rlcore.types import PolicyOutputs, Prompt, Trajectories
from rlcore.types import trajectories as training_rows
from rlcore_testing.small import EOS, LETTERS

END_SHARE = 4
"""One of this many tokens is EOS, so that lengths differ and some sequences end."""
ALIKE = (LETTERS.index("."), LETTERS.index("?"))
"""Two tokens that only answers of an environment contain, if there are any: no prompt of the kit does."""
GARBAGE = 3.0
"""Value of columns at padding."""

_stack = Trajectories.stack


class Scripted:
    """A sampler (`rlcore.protocols.Sampler`) whose continuations depend on the prompt only.

    The k-th continuation of a prompt is random with a seed computed from the prompt and k; k counts over all processes,
    in the order of a single process.

    Args:
        scored: add the columns `logprobs` and `values` of the policy.
        padded: add padding with random tokens on both sides of every sequence.
        answer: token of which two, as the answer of an environment, stand between the first sampled token and the rest.
    """

    def __init__(self, *, scored: bool, padded: bool, answer: int | None = None) -> None:
        self.scored, self.padded, self.answer = scored, padded, answer
        self.ranks: Ranks | None = None
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._counted: tuple[list[tuple[int, ...]], list[int]] | None = None

    def renew_weights(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        """Count the prompts of all processes; one that has none does not call the sampler."""
        if isinstance(policy, Divisible):
            policy.gather()
        self._counted = [prompt.tokens for prompt in prompts], self._numbers(prompts)

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002  a sampler's signature
    ) -> Trajectories:
        """Continue each prompt once."""
        counted, self._counted = self._counted, None
        if counted is not None and counted[0] == [prompt.tokens for prompt in prompts]:
            numbers = counted[1]
        else:
            numbers = self._numbers(prompts)
        continuations = [
            _draw(prompt.tokens, number, sampling.max_new_tokens)
            for prompt, number in zip(prompts, numbers, strict=True)
        ]
        said: list[int] = []
        if self.answer is not None:
            said = [self.answer] * 2
            continuations = [[0 if token in ALIKE else token for token in tokens] for tokens in continuations]
        batch = _stack(
            [[*prompt.tokens, *of[:1], *said, *of[1:]] for prompt, of in zip(prompts, continuations, strict=True)],
            [
                [False] * len(prompt.tokens) + [True] + [False] * len(said) + [True] * (len(of) - 1)
                for prompt, of in zip(prompts, continuations, strict=True)
            ],
            ended=[tokens[-1] == EOS for tokens in continuations],
        ).to(policy.device)
        if self.scored:
            with torch.no_grad(), eval_mode(policy.module):
                outputs = policy.score(batch, temperature=sampling.policy_temperature)
            values = {} if outputs.values is None else {"values": outputs.values}
            batch = batch.with_columns(logprobs=outputs.logprobs, **values)
        return with_padding(batch) if self.padded else batch

    def _numbers(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return how many continuations of each prompt all processes have sampled before."""
        rank = self.ranks.rank if self.ranks is not None else 0
        mine = [(at, rank, prompt.tokens) for at, prompt in enumerate(prompts)]
        numbers = []
        for _, owner, tokens in sorted(self.ranks.gather(mine) if self.ranks is not None else mine):
            if owner == rank:
                numbers.append(self._counts[tokens])
            self._counts[tokens] += 1
        return numbers


def _draw(prompt: tuple[int, ...], number: int, longest: int) -> list[int]:
    generator = torch.Generator().manual_seed(zlib.crc32(repr((prompt, number)).encode()))
    tokens: list[int] = torch.randint(len(LETTERS), (longest,), generator=generator).tolist()
    ends = torch.randint(END_SHARE, (longest,), generator=generator).tolist()
    if 0 in ends:
        return [*tokens[: ends.index(0)], EOS]
    return tokens


def with_padding(batch: Trajectories) -> Trajectories:
    """Return the sequences in a wider batch, each starting at a different column, with arbitrary tokens as padding."""
    lengths: list[int] = batch.mask.sum(1).tolist()
    width = max(lengths) + 5
    starts = [1 + row * 3 % (width - length) for row, length in enumerate(lengths)]

    def move(array: Tensor, fill: Tensor | float) -> Tensor:
        if array.dim() < 2:
            return array
        moved = torch.empty(len(batch), width, dtype=array.dtype, device=array.device)
        moved[:] = fill
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            moved[row, start : start + length] = array[row][batch.mask[row]]
        return moved

    return Trajectories(
        tokens=move(batch.tokens, torch.arange(width) % 2 * EOS),
        mask=move(batch.mask, 0),
        action_mask=move(batch.action_mask, 0),
        ended=batch.ended,
        columns={name: move(column, GARBAGE) for name, column in batch.columns.items()},
    )


@contextmanager
def stacking_wider() -> Iterator[None]:
    """Let `Trajectories.stack` pad both sides of every sequence, and `stack_groups` add a filler row to every group."""

    def stack(_: type[Trajectories], *arguments: Any, **options: Any) -> Trajectories:
        return with_padding(_stack(*arguments, **options))

    original, rows_of_group = Trajectories.__dict__["stack"], vars(training_rows)["_rows_of_group"]
    setattr(training_rows, "_rows_of_group", lambda groups: rows_of_group(groups) + 1)  # noqa: B010  the same
    setattr(Trajectories, "stack", classmethod(stack))  # noqa: B010  type checkers reject assignment to a method
    try:
        yield
    finally:
        setattr(Trajectories, "stack", original)  # noqa: B010  the same
        setattr(training_rows, "_rows_of_group", rows_of_group)  # noqa: B010  the same


PLACES = (
    "reward", "gradient", "activation", "logprobs", "old_logprobs", "ref_logprobs", "values", "heads", "scores",
)  # fmt: skip
"""Where the number is put: into the reward of one output, the gradient of one weight, the output of the module of this
weight in a forward pass with gradients, or into what a policy returns for one token. `old_logprobs` are those of
`policy.score` without gradients, `ref_logprobs` those of `policy.reference_score`, from which trainers compute a KL;
`heads` are the first outputs of the heads that an algorithm brought, `scores` those of a scorer."""
VALUES = (math.nan, math.inf, -math.inf, 1e30)


@attrs.define(eq=False)
class Spoiler:
    """Puts a number into one place, in every call on one rank.

    Attributes:
        place: one of PLACES.
        value: the number.
        rank: the rank on which it is put there.
        count: how often this has happened.
    """

    place: str
    value: float
    rank: int = 0
    count: int = 0

    def spoil(self, policy: object) -> None:
        """Wrap the methods of a policy or scorer whose outputs contain the place."""
        for method in ("score", "reference_score"):
            called = getattr(policy, method, None)
            if called is not None and (self.place == "ref_logprobs") == (method == "reference_score"):
                setattr(policy, method, self._wrap(called))

    def watch(self, module: nn.Module) -> None:
        """Put the number into the gradient of the first weight that is trained, or into the output of its module."""
        first = next(weight for weight in module.parameters() if weight.requires_grad)
        if self.place == "gradient":
            first.register_hook(self._spoiled)
        if self.place == "activation":
            owner = next(each for each in module.modules() if any(first is own for own in each.parameters(False)))
            owner.register_forward_hook(self._activation)

    def _activation(self, _module: nn.Module, _inputs: object, outputs: Any) -> object:
        is_trained = torch.is_grad_enabled() and isinstance(outputs, Tensor)
        return self._spoiled(outputs) if is_trained else outputs

    def rewards(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a run with the number as the first reward of every call, or of all samples."""
        if self.place != "reward":
            return given
        if "reward_fn" in given:
            return given | {"reward_fn": self._reward}
        if "rewards" in given:
            self.count += 1
            return given | {"rewards": [self.value, *given["rewards"][1:]]}
        return given

    def _reward(self, batch: Sequence[object]) -> list[float]:
        self.count += 1
        return [self.value, *(float(i) for i in range(1, len(batch)))]

    def _wrap(self, method: Callable[..., object]) -> Callable[..., object]:
        def spoiled(batch: Trajectories, *arguments: object, **options: object) -> object:
            outputs = method(batch, *arguments, **options)
            if isinstance(outputs, Tensor):
                return self._spoiled(outputs) if self.place == "scores" else outputs
            name = self._field()
            if not (isinstance(outputs, PolicyOutputs) and name and bool(batch.action_mask[0].any())):
                return outputs
            at = int(batch.action_mask[0].nonzero()[0, 0])
            found: Any = getattr(outputs, name)
            if not isinstance(found, Mapping):
                changes: dict[str, Any] = {} if found is None else {name: self._at(found, at)}
                return attrs.evolve(outputs, **changes)
            first = next(iter(found), None)
            changed = {} if first is None else {first: self._at(found[first], at)}
            return attrs.evolve(outputs, heads={**found, **changed})

        return spoiled

    def _at(self, found: Tensor, column: int) -> Tensor:
        """Return outputs with the number at a token of the first sequence."""
        self.count += 1
        added = torch.zeros_like(found)
        added[..., 0, column] = self.value
        return found + added

    def _field(self) -> str:
        """Return the field of the outputs of the present call that contains the place; "" if none does."""
        if self.place == "logprobs":
            return "logprobs" if torch.is_grad_enabled() else ""
        if self.place == "old_logprobs":
            return "" if torch.is_grad_enabled() else "logprobs"
        return {"ref_logprobs": "logprobs", "values": "values", "heads": "heads"}.get(self.place, "")

    def _spoiled(self, numbers: Tensor) -> Tensor:
        self.count += 1
        added = torch.zeros_like(numbers)
        added.view(-1)[0] = self.value
        return numbers + added
