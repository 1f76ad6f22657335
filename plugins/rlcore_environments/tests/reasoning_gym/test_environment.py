"""The environment against the real library, in episodes that are played by hand."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from reasoning_gym.factory import DATASETS

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_environments.reasoning_gym.config import ReasoningGymConfig
from rlcore_environments.reasoning_gym.environment import ReasoningGym

NUMBERS = itertools.count()


def make(**options: Any) -> ReasoningGym:
    return ReasoningGym(structure(ReasoningGymConfig, options, where="test", path="data.environment"))


def answer(text: Any, index: int = 0) -> Turn:
    return Turn(f"I think. <answer>{text}</answer>", index)


def test_a_question_is_the_librarys_and_only_the_right_answer_is_a_success() -> None:
    entry = DATASETS["chain_sum"][0](DATASETS["chain_sum"][1](seed=7, size=1))[0]
    factory = make(families="chain_sum", instructions=None)
    for text, score in ((entry["answer"], 1.0), ("x", 0.0)):
        episode = factory.make()
        assert episode.reset({}, seed=7) == entry["question"]
        step = episode.step(answer(text))
        assert step.done
        assert step.reward == {"chain_sum": score}
        assert step.info["success"] is (score == 1.0)


def test_instructions_of_the_library_and_own_ones_precede_the_question() -> None:
    question = make(families="gcd", instructions=None).make().reset({}, seed=1)
    assert make(families="gcd", instructions="Be brief.").make().reset({}, seed=1) == f"Be brief.\n\n{question}"
    told = make(families="gcd").make().reset({}, seed=1)
    assert told.endswith(f"\n\n{question}")
    assert "<answer>answer here</answer>" in told


def test_without_a_tag_the_whole_turn_is_the_answer() -> None:
    tagged, whole = make(families="gcd").make(), make(families="gcd", answer_tag=None).make()
    tagged.reset({}, seed=3), whole.reset({}, seed=3)
    oracle = whole.step(Turn(" 1\n", 0)).info["oracle"]
    assert tagged.step(Turn(str(oracle), 0)).reward == {"gcd": 0.0}  # no tags
    again = make(families="gcd", answer_tag=None).make()
    again.reset({}, seed=3)
    assert again.step(Turn(f" {oracle}\n", 0)).reward == {"gcd": 1.0}


def test_rows_of_the_two_splits_share_no_seed_and_no_question() -> None:
    factory = make(families="chain_sum", level=0, train_rows=300, eval_rows=40)
    train, held_out = factory.rows("train"), factory.rows("eval")
    assert train is not None
    assert held_out is not None
    assert len(held_out) == 40
    assert not {row["seed"] for row in train} & {row["seed"] for row in held_out}
    asked = [{factory.make().reset(row, seed=row["seed"]) for row in rows} for rows in (train, held_out)]
    assert not asked[0] & asked[1]
    assert len(train) < 300  # two terms of one digit: some of the questions occurred in both
    assert make(families="chain_sum", level=0, train_rows=900, eval_rows=40).rows("eval") == held_out
    assert make(families="chain_sum", eval_rows=0).rows("eval") is None


@pytest.mark.parametrize("is_right", [True, False])
def test_no_turn_of_a_training_asks_what_any_turn_of_the_evaluation_asks(is_right: bool) -> None:
    small = {"options": {"max_terms": 2, "max_digits": 1}}
    options: dict[str, Any] = {"families": {"chain_sum": small}, "train_rows": 150, "eval_rows": 12}
    factory = make(**options, questions=4, instructions=None)
    asked: dict[str, list[set[str]]] = {}
    for split in ("eval", "train"):
        asked[split] = [set() for _ in range(4)]
        for row in factory.rows(split) or ():
            episode = factory.make()
            step = Step(episode.reset(row, seed=row["seed"]))
            for index in range(4):
                question = str(step.messages).rpartition("\n\n")[2]
                asked[split][index].add(question)
                step = episode.step(answer(eval(question.rpartition(":")[2].strip(" =")) if is_right else "no", index))
                assert step.reward == {"chain_sum": 1.0 if is_right else 0.0}
    assert not set.union(*asked["train"]) & set.union(*asked["eval"])
    assert asked["eval"][3] - asked["eval"][0]  # others in later turns


def test_the_questions_of_the_evaluation_are_those_of_every_level_that_a_turn_can_have() -> None:
    factory = make(families="chain_sum", level=[0, 2], questions=3, eval_rows=5, instructions=None)
    asked = set()
    for row in factory.rows("eval") or ():
        for rights in itertools.product([True, False], repeat=2):
            episode = factory.make()
            step = Step(episode.reset(row, seed=row["seed"]))
            for index in range(3):
                question = str(step.messages).rpartition("\n\n")[2]
                asked.add(question)
                value = eval(question.rpartition(":")[2].strip(" ="))  # a sum of numbers
                step = episode.step(answer(value if (*rights, True)[index] else "no", index))
    assert asked <= factory.held_out


def test_families_are_drawn_by_weight_and_a_row_may_name_its_own() -> None:
    factory = make(families={"gcd": {"weight": 3}, "lcm": {}, "chain_sum": {}}, train_rows=1000, eval_rows=0)
    names = [row["family"] for row in factory.rows("train") or ()]
    assert {name: round(names.count(name) / len(names), 1) for name in ("gcd", "lcm", "chain_sum")} == {
        "gcd": 0.6, "lcm": 0.2, "chain_sum": 0.2,
    }  # fmt: skip
    episode = factory.make()
    assert "least common multiple" in episode.reset({"family": "lcm"}, seed=0).lower()
    with pytest.raises(ValueError, match="the row names the family 'dice'"):
        factory.make().reset({"family": "dice"}, seed=0)


def test_levels_are_those_of_the_librarys_curriculum() -> None:
    rows = make(families="chain_sum", level=[0, 2], train_rows=100).rows("train") or []
    assert {row["level"] for row in rows} == {0, 1, 2}
    hard = make(families={"chain_sum": {"level": 4, "options": {"min_terms": 6}}}, instructions=None)
    entry, _ = hard.question({"family": "chain_sum", "level": 4, "seed": 5})
    assert entry["metadata"]["difficulty"] == {"num_terms": (6, 6), "num_digits": (1, 5)}  # level 4: 2 to 6, 1 to 5


def test_the_level_of_an_episode_moves_with_its_answers_and_stays_in_its_range() -> None:
    factory = make(families="chain_sum", level=[1, 3], questions=5, instructions=None)
    for is_right, expected in ((True, [1, 2, 3, 3, 3]), (False, [3, 2, 1, 1, 1])):
        episode, levels = factory.make(), []
        step = Step(episode.reset({"level": expected[0]}, seed=11))
        for index in range(5):
            question = str(step.messages).rpartition(":")[2].strip(" =")
            value = eval(question, {"__builtins__": {}})  # a sum of numbers
            step = episode.step(answer(value if is_right else "no", index))
            levels.append(step.info["level"])
            assert step.reward == {"chain_sum": 1.0 if is_right else 0.0}
        assert levels == expected
        assert step.done
        assert step.info["success"] is is_right


def test_two_episodes_in_turns_are_the_same_as_one_after_the_other() -> None:
    factory = make(families=["chain_sum", "gcd", "leg_counting"], questions=3)

    def play(episode: Any, seed: int) -> Any:
        yield episode.reset({}, seed=seed)
        for index in range(3):
            number = next(NUMBERS)  # an episode depends on no global state
            random.seed(number)
            np.random.seed(number)  # noqa: NPY002  the global state
            step = episode.step(answer(index, index))
            yield step.messages, step.reward, step.info["oracle"]

    alone = [list(play(factory.make(), seed)) for seed in (1, 2**62 + 3)]
    assert alone[0] != alone[1]
    together = list(zip(play(factory.make(), 1), play(factory.make(), 2**62 + 3), strict=True))
    assert [list(each) for each in zip(*together, strict=True)] == alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({*DATASETS} - {"composite", "futoshiki", "knight_swap", "arc_agi"})
)  # slow ones
def test_every_family_asks_by_its_seed_alone(name: str) -> None:
    factory = make(families=name)
    state, asked = random.getstate(), factory.make().reset({}, seed=5)
    assert random.getstate() == state
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002  the global state
    assert factory.make().reset({}, seed=5) == asked


def test_what_the_library_raises_is_raised() -> None:
    episode = make(families="prime_factorization").make()
    episode.reset({}, seed=0)
    with pytest.raises(ValueError, match="invalid literal"):
        episode.step(answer("none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "families: must be given"),
        ({"families": []}, "must name at least one family"),
        ({"families": "chain_sums"}, "no family 'chain_sums'; did you mean 'chain_sum'?"),
        (
            {"families": {"gcd": {"options": {"terms": 2}}}},
            r"families.gcd.options: unknown option 'terms'; known: max_nu",
        ),
        ({"families": {"gcd": {"wait": 2}}}, r"data.environment.families.gcd.wait"),
        ({"families": {"gcd": {"weight": 0}}}, r"families.gcd.weight = 0.* must be greater than 0"),
        ({"families": "gcd", "level": 9}, r"families.gcd: level = 9: must lie in \[0, 3\]"),
        ({"families": "gcd", "level": [2, 1]}, r"level = \[2, 1\]: the first level"),
        ({"families": "acre", "level": 0}, "families.acre: level = 0: the family has no levels"),
        ({"families": {"gcd": {"options": {"min_numbers": 1}}}}, "refuses {'min_numbers': 1}: min_numbers must be"),
        ({"families": "gcd", "questions": 33}, r"questions = 33: must lie in \[1, 32\]"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
