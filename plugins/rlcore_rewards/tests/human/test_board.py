"""Tests of the questions, who gets them, and the file of answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest
from people import score_item

from rlcore.errors import DataError
from rlcore_rewards.human.board import Board
from rlcore_rewards.human.judgement import NAME, Item, rank_scores, read_judgements


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_questions_that_differ_in_anything_shown_have_different_keys() -> None:
    asked = Item("rank", "p", ("a", "b"), scale=(1.0, 5.0, 1.0))
    others = [
        attrs.evolve(asked, **change)
        for change in (
            {"mode": "score"}, {"prompt": "q"}, {"outputs": ("b", "a")}, {"outputs": ("a",)},
            {"scale": (1.0, 4.0, 1.0)}, {"scale": ()},
        )
    ]  # fmt: skip
    assert len({each.key for each in [asked, *others]}) == 1 + len(others)
    assert attrs.evolve(asked, step=9, messages=[]).key == asked.key


def test_two_people_never_get_the_same_question_and_each_judgement_is_kept_once(tmp_path: Path) -> None:
    board, items = Board(tmp_path), [score_item(text) for text in "abc"]
    board.ask(items)
    ann, bob = board.take("ann", "1"), board.take("bob", "2")
    assert (ann, bob) == (items[0], items[1])
    assert board.take("ann", "1") == ann  # a tab keeps its question
    assert board.judge("x", ann.key, 4, who="ann", tab="1") == "kept"
    assert board.judge("x", ann.key, 4, who="ann", tab="1") == "kept"  # sent again
    assert board.judge("y", ann.key, 2, who="bob", tab="2") == "closed"  # answered in the meantime
    assert [each.id for each in read_judgements(tmp_path)] == ["x"]
    assert (board.scores(ann), board.scores(bob)) == ((4.0,), None)
    assert board.take("ann", "1") == items[2]


def test_the_question_of_a_tab_that_is_gone_returns(tmp_path: Path) -> None:
    clock = Clock()
    board = Board(tmp_path, lease_s=10, clock=clock)
    board.ask([score_item("a")])
    item = board.take("ann", "1")
    assert board.take("bob", "2") is None
    clock.now = 9
    board.renew("1")
    clock.now = 18
    assert board.take("bob", "2") is None
    clock.now = 19
    assert board.take("bob", "2") == item  # no sign of life for 10 seconds
    board.leave("2")
    assert board.take("ann", "3") == item


def test_a_question_for_two_judges_goes_to_two_people_and_gets_their_mean(tmp_path: Path) -> None:
    board, item = Board(tmp_path, judges=2), score_item("a")
    board.ask([item])
    assert board.take("ann", "1") == item
    board.judge("x", item.key, 2, who="ann", tab="1")
    assert (board.take("ann", "1"), board.scores(item)) == (None, None)
    assert board.take("bob", "2") == item
    board.judge("y", item.key, 5, who="bob", tab="2")
    assert board.scores(item) == (3.5,)


def test_questions_judged_before_a_restart_are_not_asked_again(tmp_path: Path) -> None:
    items, first = [score_item("a"), score_item("\ud7ff\x1b[31m\u2028")], Board(tmp_path)
    first.ask(items)
    first.judge("x", items[1].key, None, who="ann", tab="1")
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"id": "torn')  # the process died in the middle of a line
    again = Board(tmp_path)
    again.ask(items)
    assert again.scores(items[1]) == (None,)
    assert again.take("ann", "1") == items[0]
    assert again.judge("y", items[0].key, 3, who="ann", tab="1") == "kept"
    assert [each.id for each in read_judgements(tmp_path)] == ["x", "y"]
    row = json.loads((tmp_path / NAME).read_text().splitlines()[1])
    assert (row["who"], row["value"], row["when"][:2]) == ("ann", 3, "20")


def test_a_judgement_is_complete_in_its_file_when_that_file_is_synced_and_a_new_file_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    file = tmp_path / NAME

    def note(descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        names = {file.stat().st_ino: NAME, tmp_path.stat().st_ino: "folder"}
        synced.append((names[number], len(file.read_bytes().splitlines())))

    board, items = Board(tmp_path), [score_item(text) for text in "ab"]
    board.ask(items)
    monkeypatch.setattr("os.fsync", note)
    for number, item in enumerate(items):
        board.judge(str(number), item.key, 3, who="ann", tab="1")
    assert synced == [(NAME, 1), ("folder", 1), (NAME, 2)]


def test_a_judgement_whose_first_sync_failed_is_written_twice_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, item = Board(tmp_path, judges=2), score_item("a")
    board.ask([item])
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            board.judge("x", item.key, 2, who="ann", tab="1")
    assert board.judge("x", item.key, 2, who="ann", tab="1") == "kept"
    assert len((tmp_path / NAME).read_text().splitlines()) == 2
    assert [each.id for each in read_judgements(tmp_path)] == ["x"]


def test_a_malformed_line_of_the_judgements_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"judgements\.jsonl:1: is no judgement: KeyError: 'mode'"):
        Board(tmp_path)


def test_a_question_for_which_no_run_waits_can_no_longer_be_judged(tmp_path: Path) -> None:
    board, item = Board(tmp_path), score_item("a")
    board.ask([item])
    board.ask([item])  # of two sub-batches
    board.withdraw([item])
    assert board.take("ann", "1") == item
    board.withdraw([item])
    assert board.judge("x", item.key, 3, who="ann", tab="1") == "closed"


def test_an_answer_to_a_question_that_is_not_asked_yet_may_be_sent_again(tmp_path: Path) -> None:
    board, item = Board(tmp_path), score_item("a")
    assert board.judge("x", item.key, 3, who="ann", tab="1") == "unknown"  # the run was restarted
    assert board.judge("x", item.key, 3, who="ann", tab="1", step=0) == "unknown"  # and has asked nothing
    assert read_judgements(tmp_path) == []
    board.ask([item])
    assert board.judge("x", item.key, 3, who="ann", tab="1") == "kept"


def test_the_last_answer_of_a_person_can_be_taken_back_and_the_correction_is_kept(tmp_path: Path) -> None:
    board, items = Board(tmp_path), [score_item(text) for text in "abc"]
    board.ask(items)
    for name, item, who in (("1", items[0], "ann"), ("2", items[1], "bob"), ("3", items[2], "ann")):
        board.judge(name, item.key, 2, who=who, tab=who)
    assert board.take_back("4", who="ann", tab="ann") == items[2]
    assert board.take_back("4", who="ann", tab="ann") == items[2]  # sent again
    assert (board.scores(items[2]), board.scores(items[0]), board.take("bob", "bob")) == (None, (2.0,), None)
    assert board.counts == {"open": 1, "judged": 2}
    board.judge("5", items[2].key, 5, who="ann", tab="ann")
    assert [(each.id, each.value) for each in read_judgements(tmp_path)] == [("1", 2), ("2", 2), ("5", 5)]
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [line["id"] for line in lines] == ["1", "2", "3", "4", "5"]
    assert (lines[3]["takes_back"], lines[3]["who"]) == ("3", "ann")
    assert Board(tmp_path).counts == {"open": 0, "judged": 3}


def test_an_answer_that_the_run_has_used_cannot_be_taken_back(tmp_path: Path) -> None:
    board, item = Board(tmp_path), score_item("a")
    assert board.take_back("1", who="ann", tab="ann") is None
    board.ask([item])
    board.judge("2", item.key, 2, who="ann", tab="ann")
    assert board.take_back("3", who="bob", tab="bob") is None
    board.withdraw([item])
    assert board.take_back("4", who="ann", tab="ann") is None
    assert [each.id for each in read_judgements(tmp_path)] == ["2"]


def test_a_share_of_the_questions_gets_a_second_opinion_whatever_the_process(tmp_path: Path) -> None:
    items = [score_item(str(i)) for i in range(400)]
    chosen = []
    for again in range(2):
        board = Board(tmp_path / str(again), second_opinion=0.25)
        (tmp_path / str(again)).mkdir()
        board.ask(items)
        for i, item in enumerate(items):
            board.judge(str(i), item.key, 2, who="ann", tab="ann")
        chosen.append({item.key for item in items if board.scores(item) is None})
    assert chosen[0] == chosen[1]
    assert 70 <= len(chosen[0]) <= 130  # 100 expected, standard deviation 8.7
    second = board.take("bob", "bob")
    assert second is not None
    assert second.key in chosen[0]
    assert board.judge("second", second.key, 4, who="bob", tab="bob") == "kept"
    assert board.scores(second) == (3.0,)


@pytest.mark.parametrize(("ranks", "scores"), [
    ([1, 2, 3], (1, 0.5, 0)), ([3, 1, 2], (0, 1, 0.5)), ([1, 1, 3], (0.75, 0.75, 0)), ([1, 1, 2], (0.75, 0.75, 0)),
    ([2, 2], (0.5, 0.5)),
])  # fmt: skip
def test_scores_of_ranks_fall_evenly_and_ties_share_their_mean(ranks: list[int], scores: tuple[float, ...]) -> None:
    assert rank_scores(ranks, len(ranks)) == scores


@pytest.mark.parametrize("value", [0, 5.5, "3", True, [3], float("nan")])
def test_a_score_outside_the_scale_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="is not a number from 1 to 5"):
        score_item("a").scores(value)


@pytest.mark.parametrize("value", [1.5, 2.000_1])
def test_a_score_between_two_of_the_scale_is_refused_from_the_page(tmp_path: Path, value: float) -> None:
    board, item = Board(tmp_path), score_item("a")
    board.ask([item])
    with pytest.raises(DataError, match=rf"the score {value} is none of 1, 2, and so on to 5"):
        board.judge("x", item.key, value, who="ann", tab="1")
    assert read_judgements(tmp_path) == []
    tenths = Item("score", "p", ["a"], None, (0, 1, 0.1))
    for offered in (0.3, 0.30000000000000004, 1):
        tenths.check(offered)
    Item("score", "p", ["a"], None, (0, 1, 0)).check(0.123)  # a slider


@pytest.mark.parametrize("value", [[1], [0, 1], [1, 3], [1.0, 2], "12", {"a": 1}])
def test_ranks_that_are_no_order_of_the_completions_are_refused(value: object) -> None:
    with pytest.raises(DataError, match="are not 2 whole numbers from 1 to 2"):
        Item("rank", "p", ["a", "b"]).scores(value)


def test_an_answer_to_a_question_whose_step_the_restarted_run_has_passed_is_given_up(tmp_path: Path) -> None:
    board, item = Board(tmp_path), attrs.evolve(score_item("a"), step=3)
    for step, outcome in ((2, "unknown"), (3, "unknown"), (4, "gone")):
        board.ask([attrs.evolve(score_item(f"of step {step}"), step=step)])
        assert board.judge("x", item.key, 3, who="ann", tab="1", step=3) == outcome
    assert board.judge("x", item.key, 3, who="ann", tab="1") == "unknown"  # of a page that sends no step
    assert read_judgements(tmp_path) == []


def test_questions_that_wait_for_another_person_are_counted_for_those_who_have_judged_them(tmp_path: Path) -> None:
    board, items = Board(tmp_path, second_opinion=1), [score_item("a"), score_item("b")]
    board.ask(items)
    board.judge("x", items[0].key, 3, who="ann", tab="1")
    assert (board.num_waiting("ann"), board.num_waiting("bob")) == (1, 0)
    board.judge("y", items[0].key, 3, who="bob", tab="2")
    assert (board.num_waiting("ann"), board.num_waiting("bob")) == (0, 0)
