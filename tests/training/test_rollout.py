"""Tests of rewards computed while sampling continues: same numbers, order and errors as rewards computed afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from rlcore.errors import DataError, RewardError
from rlcore.rewards.combine import Rewards, Scored, Scorer
from rlcore.training import rollout
from rlcore.training.rollout import collect
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import make_tokenizer

TEXTS = ["a", "bb", "ccc", "dd", "eeeee", "f", "gg", "hhh", "i", "jj"]
HANG_S = 300.0
"""How long a test that hangs waits."""
PARTS = [[0, 5, 8], [1, 3, 6], [9, 2, 7], [4]]
"""Sub-batches in the order they finish, as with a sampler that sorts prompts."""


class Sampled:
    """Sampler that returns scripted continuations, one sub-batch after another."""

    def __init__(self, *, parts: Sequence[Sequence[int]] = PARTS, before: Callable[[int], None] | None = None) -> None:
        self.parts, self.before, self.told = parts, before, 0
        self.prompts = [
            Prompt(text, tuple(letters(text)), {"label": i} if i else {"only": "here"}) for i, text in enumerate(TEXTS)
        ]

    def __call__(self, prompts: Sequence[Prompt], on_batch: Any = None) -> Trajectories:
        for number, rows in enumerate(self.parts if on_batch else []):
            if self.before is not None:
                self.before(number)
            on_batch(rows, self.batch.rows(torch.tensor(rows)))
            self.told += 1
        return self.batch

    @property
    def batch(self) -> Trajectories:
        drawn = [letters(text)[::-1] + [30] * (i % 2) for i, text in enumerate(TEXTS)]
        return Trajectories.stack(
            [[*prompt.tokens, *tokens] for prompt, tokens in zip(self.prompts, drawn, strict=True)],
            [[False] * len(p.tokens) + [True] * len(tokens) for p, tokens in zip(self.prompts, drawn, strict=True)],
            ended=[i % 2 == 1 for i in range(len(TEXTS))],
        )


def letters(text: str) -> list[int]:
    ids: list[int] = make_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def run(reward_fn: Any, *, overlap: bool, sampled: Sampled | None = None) -> tuple[Trajectories, Scored]:
    sampled = sampled or Sampled()
    scorer = Scorer(Rewards.build(reward_fn), make_tokenizer(), (), False, "step 3")
    return collect(sampled, scorer, sampled.prompts, overlap=overlap)


def by_number(outputs: list[str], prompts: list[str], label: list[int | None]) -> list[float]:
    return [len(o) + (n or 0) / 7 + (p == "dd") for o, p, n in zip(outputs, prompts, label, strict=True)]


def some(outputs: list[str]) -> list[float | None]:
    return [None if len(output) == 2 else len(output) / 3 for output in outputs]


def dense(output_tokens: list[list[int]]) -> list[list[float]]:
    return [[token / 9 for token in tokens] for tokens in output_tokens]


def dense_where_long(output_tokens: list[list[int]], outputs: list[str]) -> list[Any]:
    """Return per-token rewards for the longest output alone, which is in a single sub-batch."""
    return [[0.5] * len(t) if len(o) == 5 else 1.5 for t, o in zip(output_tokens, outputs, strict=True)]


async def later(outputs: list[str], tokenizer: Any) -> torch.Tensor:
    await asyncio.sleep(0.001 * (5 - len(outputs[0])))  # the first sub-batches finish last
    return torch.tensor([float(len(tokenizer(output)["input_ids"])) for output in outputs])


FORMS: dict[str, Any] = {
    "function": by_number,
    "no opinion on some": some,
    "coroutine": later,
    "dense": dense,
    "dense in one sub-batch": dense_where_long,
    "weighted": [(by_number, 0.3), (later, -2.0), (some, 0.1)],
    "named": {"right": by_number, "tokens": (dense_where_long, 0.5), "late": later},
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_scoring_everything_afterwards(form: str) -> None:
    (_, ours), (_, theirs) = run(FORMS[form], overlap=True), run(FORMS[form], overlap=False)
    assert ours.outputs == theirs.outputs
    assert ours.by_name == theirs.by_name
    assert torch.equal(ours.scores, theirs.scores)
    assert len(set(theirs.scores.tolist())) > 1
    assert (ours.dense is None) == (theirs.dense is None)
    if theirs.dense is not None:
        assert ours.dense is not None
        assert torch.equal(ours.dense, theirs.dense)


def test_functions_see_one_sub_batch_after_another_in_a_thread_of_their_own() -> None:
    seen: list[tuple[list[str], str]] = []

    def note(prompts: list[str]) -> list[float]:
        seen.append((prompts, threading.current_thread().name))
        return [0.0] * len(prompts)

    run(note, overlap=True)
    assert [prompts for prompts, _ in seen] == [[TEXTS[row] for row in rows] for rows in PARTS]
    assert {name for _, name in seen} == {"rlcore-overlap"}
    seen.clear()
    run(note, overlap=False)
    assert seen == [(TEXTS, threading.current_thread().name)]


def test_a_function_works_while_the_next_sub_batch_is_sampled() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait_for_the_second(outputs: list[str]) -> list[float]:
        if len(outputs[0]) == 1:
            asked.set()
            assert answered.wait(HANG_S)
        return [0.0] * len(outputs)

    def before(number: int) -> None:
        if number == 1:
            assert asked.wait(HANG_S)
            answered.set()

    run(wait_for_the_second, overlap=True, sampled=Sampled(before=before))


def test_coroutines_of_several_sub_batches_run_at_the_same_time() -> None:
    state = {"now": 0, "most": 0}

    async def meet(outputs: list[str]) -> list[float]:
        state["now"] += 1
        state["most"] = max(state["most"], state["now"])
        while state["most"] < len(PARTS):  # noqa: ASYNC110  all wait until all have started; an Event needs a loop
            await asyncio.sleep(0)
        return [float(len(output)) for output in outputs]

    _, scored = run(meet, overlap=True)
    assert state["most"] == len(PARTS)
    assert scored.scores.tolist() == [float(len(output)) for output in scored.outputs]


def bad_at_g(outputs: list[str]) -> list[float]:
    return [float("nan") if output == "gg" else 1.0 for output in outputs]


async def late_and_bad(outputs: list[str]) -> list[float]:
    await asyncio.sleep(0)
    if "gg" in outputs:
        raise KeyError("gg")
    return [1.0] * len(outputs)


def raises_at_g(outputs: list[str]) -> list[float]:
    if "gg" in outputs:
        raise ZeroDivisionError("here")
    return [1.0] * len(outputs)


@pytest.mark.parametrize(
    ("reward_fn", "said"),
    [
        (bad_at_g, r"reward function 'bad_at_g' \(step 3, 3 of a batch of 10\) returned nan for sample 6"),
        (raises_at_g, r"'raises_at_g' \(step 3, 3 of a batch of 10\) raised ZeroDivisionError: here at .*\.py:\d+"),
        (late_and_bad, r"'late_and_bad' \(step 3, 3 of a batch of 10\) raised KeyError: 'gg'"),
        (lambda outputs: [1.0], r"\(step 3, 3 of a batch of 10\) returned 1 values for 3 samples; return 3 numbers"),
        (lambda outputs, lable: outputs, r"has an unknown parameter 'lable'; did you mean 'label'"),
    ],
)
def test_an_error_names_function_and_sample_and_ends_sampling(
    reward_fn: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, calls = Rewards.begin, dict[int, Any]()

    def note(*arguments: Any, **options: Any) -> Any:
        number, call = len(calls), None
        try:
            call = begin(*arguments, **options)
        finally:
            calls[number] = call
        return call

    def before(number: int) -> None:
        """Report the last sub-batch when the thread is done with the earlier ones."""
        end = time.monotonic() + HANG_S
        while number == 3 and not (len(calls) == 3 and all(call is None or call.is_done for call in calls.values())):
            assert time.monotonic() < end
            time.sleep(0.01)

    monkeypatch.setattr(Rewards, "begin", note)
    sampled = Sampled(before=before)
    with pytest.raises(RewardError, match=said):
        run(reward_fn, overlap=True, sampled=sampled)
    assert sampled.told < len(PARTS)
    assert not threads()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rlcore-overlap"]


def test_an_error_of_sampling_ends_the_scoring_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    asked, gate = threading.Event(), threading.Event()

    def note(prompts: list[str]) -> list[float]:
        seen.append(prompts)
        asked.set()
        assert gate.wait(HANG_S)
        return [0.0] * len(prompts)

    def before(number: int) -> None:
        if number == 3:
            assert asked.wait(HANG_S)
            raise MemoryError("no more")

    def leave_late(overlapped: rollout._Overlap, *error: Any) -> None:
        """Let the function return when the thread is waited for, which is after its other calls are cancelled."""
        monkeypatch.setattr(overlapped._thread, "join", lambda patience: (gate.set(), join(patience)))
        join = type(overlapped._thread).join.__get__(overlapped._thread)
        leave(overlapped, *error)

    leave = rollout._Overlap.__exit__
    monkeypatch.setattr(rollout._Overlap, "__exit__", leave_late)
    with pytest.raises(MemoryError, match="no more"):
        run(note, overlap=True, sampled=Sampled(before=before))
    assert seen == [[TEXTS[row] for row in PARTS[0]]]
    assert not threads()


def test_an_interrupt_waits_for_no_function_and_no_coroutine() -> None:
    begun, cancelled, release = threading.Event(), threading.Event(), threading.Event()

    def blocked(outputs: list[str]) -> list[float]:
        begun.set()
        release.wait(HANG_S)
        return [0.0] * len(outputs)

    async def endless(outputs: list[str]) -> list[float]:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return [0.0] * len(outputs)

    def before(number: int) -> None:
        if number == 3:
            assert begun.wait(HANG_S)
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run(blocked, overlap=True, sampled=Sampled(before=before))
        assert threads()  # only the function itself can end
    finally:
        release.set()
    begun.clear()
    with pytest.raises(KeyboardInterrupt):
        run(endless, overlap=True, sampled=Sampled(before=before))
    assert cancelled.wait(HANG_S)
    for thread in threading.enumerate():
        if thread.name == "rlcore-overlap":
            thread.join(HANG_S)
    assert not threads()


def test_a_reward_that_calls_sys_exit_is_an_error_also_beside_sampling() -> None:
    def leave(outputs: list[str]) -> list[float]:
        raise SystemExit(3)

    with pytest.raises(RewardError, match=r"'leave' \(step 3, 3 of a batch of 10\) raised SystemExit: 3"):
        run(leave, overlap=True)


def test_rows_that_a_sampler_did_not_report_are_scored_at_the_end() -> None:
    _, theirs = run(by_number, overlap=False)
    for parts in ([], PARTS[1:3]):
        _, ours = run(by_number, overlap=True, sampled=Sampled(parts=parts))
        assert torch.equal(ours.scores, theirs.scores)


def test_a_sample_without_chosen_tokens_is_named_by_its_index() -> None:
    class Nothing(Sampled):
        @property
        def batch(self) -> Trajectories:
            batch = super().batch
            batch.action_mask[7] = False
            return batch

    for overlap in (True, False):
        with pytest.raises(DataError, match="sample 7 of the batch has no chosen token: 'hhh'"):
            run(by_number, overlap=overlap, sampled=Nothing())
