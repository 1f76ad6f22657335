"""Tests of the examples with environments and tools, shortened."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.protocols import Turn

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.slow
def test_alice_learns_the_form_of_answers_and_is_evaluated_on_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import alice

    result = alice.train(0, epochs=1, steps=1, root=str(tmp_path))
    assert 0 <= result.metrics["eval/episode/success"] < 0.5
    rows = [json.loads(line) for line in (result.run_dir / "completions.jsonl").read_text().splitlines()]
    held_out, trained_on = {row["prompt"] for row in rows}, set(alice.questions())
    assert len(trained_on) > 600
    assert len(held_out) > 150
    assert not held_out & trained_on
    answers = [row["output"] for row in rows if row["step"] == 0]
    assert sum(answer.isdigit() for answer in answers) > 0.9 * len(answers)
    tokenizer = alice.make_tokenizer()
    for question in held_out:
        assert tokenizer.unk_token_id not in tokenizer(question)["input_ids"]


def lines(result: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / name).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_the_numbers_are_guessed_in_at_most_three_turns(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import guess_number

    result = guess_number.train(0, trainer, steps=2, root=str(tmp_path), rollouts="all")
    rows = lines(result, "rollouts.jsonl")
    assert len(rows) == 2 * 224
    assert {row["columns"]["secret"] for row in rows} == set(range(1, 8))
    for row in rows:
        turns = [each["content"] for each in row["transcript"] if each["role"] == "assistant"]
        found = turns[-1] == str(row["columns"]["secret"])
        assert row["reward"] == float(found)
        assert len(turns) == 3 or (found and len(turns) < 3)
    assert 0 <= result.metrics["eval/reward/mean"] < 0.9  # it has hardly learned


def test_only_binary_search_always_finds_the_number_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import guess_number

    def best(secrets: list[int], guesses: list[int]) -> int:
        """Return how many of these numbers the best play finds whose guesses so far are these."""
        if len(guesses) == guess_number.GuessNumber.max_turns or not secrets:
            return 0
        counts = []
        for guess in range(1, 8):
            found, answers = 0, dict[str, list[int]]()
            for secret in secrets:
                game = guess_number.GuessNumber()
                assert game.reset({"secret": secret}, seed=0) == "?"
                step = game.step(Turn(str(guess), len(guesses)))
                found += step.reward == 1.0
                if not step.done:
                    answers.setdefault(str(step.messages), []).append(secret)
            counts.append(found + sum(best(left, [*guesses, guess]) for left in answers.values()))
        if not guesses:
            assert [k + 1 for k, count in enumerate(counts) if count == 7] == [4]
        return max(counts)

    assert best(list(range(1, 8)), []) == 7


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_a_wrong_guess_takes_a_quarter_from_the_reward(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import guess_number

    result = guess_number.train(0, trainer, "soon", steps=1, root=str(tmp_path), rollouts="all")
    for row in lines(result, "rollouts.jsonl"):
        turns = [each["content"] for each in row["transcript"] if each["role"] == "assistant"]
        found = turns[-1] == str(row["columns"]["secret"])
        assert row["reward"] == (1.25 - 0.25 * len(turns) if found else 0.0)
        assert len(turns) == 4 or (found and len(turns) < 4)


def test_the_best_play_with_a_price_for_wrong_guesses_has_a_mean_return_of_nine_fourteenths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Binary search finds one number in one guess, two in two, and four in three."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import guess_number

    def best(secrets: list[int], turn: int) -> float:
        if turn == 4 or not secrets:
            return 0.0
        sums = []
        for guess in secrets:
            total, answers = 0.0, dict[str, list[int]]()
            for secret in secrets:
                game = guess_number.GuessSoon()
                game.reset({"secret": secret}, seed=0)
                step = game.step(Turn(str(guess), turn))
                total += step.reward
                if not step.done:
                    answers.setdefault(str(step.messages), []).append(secret)
            sums.append(total + sum(best(left, turn + 1) for left in answers.values()))
        return max(sums)

    assert best(list(range(1, 8)), 0) / 7 == 9 / 14


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_question_that_the_calculator_is_evaluated_on_is_demonstrated_or_trained_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import calculator

    given: list[dict[str, Any]] = []

    def train(*_: Any, **options: Any) -> SimpleNamespace:
        given.append(options)
        return SimpleNamespace(run_dir=Path())

    monkeypatch.setattr(calculator.rlcore, "train", train)
    calculator.train(seed)
    imitation, learning = given
    held_out = {row["prompt"] for row in learning["eval_prompts"]}
    asked = {row["prompt"] for row in learning["prompts"]}
    shown = {text for sample in imitation["samples"] for text in (sample[0], called(sample[1]))}
    assert (len(held_out), len(asked)) == (200, 1400)
    assert len(shown) > 1200
    assert not held_out & (asked | shown)


def called(call: str) -> str:
    """Return the question that a call of the example asks the calculator."""
    a, b = (part.split("=")[1] for part in call.removeprefix("[add(").removesuffix(")]").split(","))
    return f"{a}+{b}="


@pytest.mark.slow  # thousands of demonstrations are imitated
def test_the_calculator_is_called_and_evaluated_on_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import calculator

    result = calculator.train(0, epochs=1, steps=1, root=str(tmp_path), rollouts="all")
    trained = {row["prompt"] for row in lines(result, "rollouts.jsonl")}
    evaluated = lines(result, "completions.jsonl")
    assert not trained & {row["prompt"] for row in evaluated}
    assert 0 <= result.metrics["eval/reward/mean"] < 0.5
    calls = [row for row in evaluated if any(each["role"] == "tool" for each in row["transcript"])]
    assert len(calls) > 0.3 * len(evaluated)  # one epoch of imitation teaches the form of a call
    for row in calls:
        call, answer = row["transcript"][0]["content"], row["transcript"][1]["content"]
        numbers = [int(part.split("=")[1]) for part in call.strip("[]").removeprefix("add(").rstrip(")").split(",")]
        assert int(answer) == sum(numbers)
