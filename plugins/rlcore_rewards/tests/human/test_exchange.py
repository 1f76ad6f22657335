"""Tests of preferences made from judgements, and of the exchange with Argilla."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlcore
from rlcore.cli import main
from rlcore_rewards.human import preferences
from rlcore_rewards.human.argilla_records import read_records, to_records
from rlcore_rewards.human.config import HumanConfig
from rlcore_rewards.human.human_reward import HumanReward
from rlcore_rewards.human.judgement import Item, Judgement, append_judgements, measure_agreement, read_judgements
from rlcore_testing.small import make_gpt2, make_tokenizer

CHAT = [{"role": "user", "content": "Hi"}]


def judged(item: Item, value: Any, who: str = "ann") -> Judgement:
    return Judgement(f"{who} {item.key}", item, value, who, "2026-01-02T03:04:05.678+00:00", 2.5)


def score(output: str, prompt: str = "p") -> Item:
    return Item("score", prompt, [output], None, (1, 5, 1), 3)


RANKED = Item("rank", "<hi>", ["A", "B", "C"], CHAT, (), 1)
JUDGEMENTS = [
    judged(score("x"), 4), judged(score("y"), 2), judged(score("y"), 5, "bob"), judged(score("z"), None),
    judged(score("w", "q"), 1), judged(RANKED, [2, 1, 2]),
]  # fmt: skip


def test_preferences_are_pairs_of_one_prompt_with_different_mean_scores(tmp_path: Path) -> None:
    append_judgements(tmp_path, JUDGEMENTS)
    answer = [{"role": "assistant", "content": "B"}]
    others = [[{"role": "assistant", "content": text}] for text in "AC"]
    expected: list[dict[str, Any]] = [
        {"prompt": "p", "chosen": "x", "rejected": "y"},  # 4 and (2 + 5) / 2
        {"prompt": CHAT, "chosen": answer, "rejected": others[0]},
        {"prompt": CHAT, "chosen": answer, "rejected": others[1]},
    ]
    assert preferences(tmp_path) == expected
    tie = {"prompt": CHAT, "chosen": others[0], "rejected": others[1], "label": "tie"}
    assert preferences(tmp_path, ties=True) == [*expected[:2], tie, expected[2]]


def test_an_answer_that_continues_the_assistants_message_is_whole_in_preferences(tmp_path: Path) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "I "}]
    append_judgements(tmp_path, [judged(Item("rank", "r", ["am", "was"], begun), [1, 2])])
    (row,) = preferences(tmp_path)
    assert (row["prompt"], row["chosen"][0]["content"], row["rejected"][0]["content"]) == (CHAT, "I am", "I was")


def test_records_have_argillas_form(tmp_path: Path) -> None:
    records = to_records(JUDGEMENTS)
    assert [list(record["responses"]) for record in records] == [["score"]] * 3 + [["ranking"]]
    assert records[1]["fields"] == {"prompt": "p", "completion": "y"}
    assert [each["value"] for each in records[1]["responses"]["score"]] == [2, 5]
    assert len({each["user_id"] for each in records[1]["responses"]["score"]}) == 2
    assert {each["status"] for each in records[1]["responses"]["score"]} == {"submitted"}
    assert records[3]["fields"] == {
        "prompt": "<hi>", "completion_1": "A", "completion_2": "B", "completion_3": "C", "conversation": CHAT,
    }  # fmt: skip
    assert records[3]["responses"]["ranking"][0]["value"] == [
        {"value": "completion_2", "rank": 1}, {"value": "completion_1", "rank": 2},
        {"value": "completion_3", "rank": 2},
    ]  # fmt: skip


def test_export_and_import_give_the_same_judgements(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_text(json.dumps(to_records(JUDGEMENTS)))
    found = {each.id: each for each in read_records(path, scale=(0, 9, 1))}
    for judgement in JUDGEMENTS:
        if judgement.value is not None:
            other = found.pop(judgement.id)
            assert (other.item, other.item.messages) == (judgement.item, judgement.item.messages)
            assert other == judgement
    assert found == {}


def test_argillas_own_package_reads_and_writes_the_records(tmp_path: Path) -> None:
    records_io = pytest.importorskip("argilla.records._io", reason="argilla is not installed")
    written, again = tmp_path / "records.json", tmp_path / "again.json"
    written.write_text(json.dumps(to_records(JUDGEMENTS)))
    records = records_io.JsonIO._records_from_json(written)
    assert [record.fields["prompt"] for record in records] == ["p", "p", "q", "<hi>"]
    assert [[each.value for each in record.responses["score"]] for record in records[:3]] == [[4], [2, 5], [1]]
    assert [each["rank"] for each in records[3].responses["ranking"][0].value] == [1, 2, 2]
    records_io.JsonIO.to_json(records, again)
    assert read_records(again, scale=(0, 9, 1)) == read_records(written, scale=(0, 9, 1))


def test_the_command_writes_preferences_and_imports_each_judgement_once(tmp_path: Path, capsys: Any) -> None:
    append_judgements(tmp_path, JUDGEMENTS)
    foreign = [{"id": "7", "fields": {"prompt": "p", "completion_1": "a", "completion_2": "b"}, "responses": {
        "ranking": [{"value": ["completion_2", "completion_1"], "user_id": "0b1e"}]
    }}]  # fmt: skip
    records, rows = tmp_path / "foreign.json", tmp_path / "preferences.jsonl"
    records.write_text(json.dumps(foreign))
    for _ in range(2):
        assert main(["judgements", str(tmp_path), "--from-argilla", str(records), "--preferences", str(rows)]) == 0
    last = [json.loads(line) for line in rows.read_text().splitlines()][-1]
    assert last == {"prompt": "p", "chosen": "b", "rejected": "a"}
    assert len(read_judgements(tmp_path)) == len(JUDGEMENTS) + 1
    assert "7 judgements of 6 questions: ann 5" in capsys.readouterr().out


@pytest.mark.parametrize("trainer", ["dpo", "reward"])
@pytest.mark.parametrize("messages", [None, CHAT, [*CHAT, {"role": "assistant", "content": "I "}]])
def test_trainers_accept_the_file_of_preferences_as_it_is_written(trainer: str, messages: Any, tmp_path: Path) -> None:
    tokenizer, rows = make_tokenizer(), tmp_path / "preferences.jsonl"
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    make_gpt2().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    append_judgements(tmp_path, [judged(Item("rank", "ab", ["a", "b", "c"], messages), [2, 1, 2])])
    assert main(["judgements", str(tmp_path), "--ties", "--preferences", str(rows)]) == 0
    argv = [trainer, "--model", str(tmp_path / "model"), "--data", str(rows), "--run.steps", "1"]
    assert main([*argv, "--run.root", str(tmp_path), "--run.name", "run", "--run.report", "false"]) == 0
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["loss/total"] > 0


@pytest.mark.parametrize(("content", "message"), [
    ("{}", "is a dict; expected the list"), ("[1", "cannot be read as JSON"),
    ('[{"id": 1}]', "record 0: KeyError: 'fields'"),
    ('[{"fields": {"prompt": "p", "completion": "c"}, "responses": {"score": [{"value": 9, "user_id": "u"}]}}]',
     "record 0: DataError: the score 9 is not a number from 1 to 5"),
])  # fmt: skip
def test_an_import_of_a_file_without_records_names_the_file(
    content: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "records.json"
    path.write_text(content)
    assert main(["judgements", str(tmp_path), "--from-argilla", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_agreement_is_krippendorffs_alpha_of_what_several_people_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand, at the interval level: 3 pairs of scores (1, 2), (3, 3), (5, 4) on the scale 1 to 5.

    Observed disagreement: (1 + 0 + 1) / 3 = 2 / 3, the mean squared difference within the pairs. Expected: the mean
    over all 15 pairs of the six values 1, 2, 3, 3, 4, 5, whose squared differences sum to 6 * 64 - 18 ** 2 = 60, so 4.
    alpha = 1 - (2 / 3) / 4 = 5 / 6.
    """
    pairs = [("x", 1, 2), ("y", 3, 3), ("z", 5, 4)]
    judgements = [
        judged(score(text), value, who)
        for text, *values in pairs
        for who, value in zip(("ann", "bob"), values, strict=True)
    ]
    judgements.append(judged(score("w"), 2))  # judged by one person alone
    (found,) = measure_agreement(judgements)
    assert (found.mode, found.completions, found.people) == ("score", 3, 2)
    assert found.alpha == pytest.approx(5 / 6)
    append_judgements(tmp_path, judgements)
    assert main(["judgements", str(tmp_path)]) == 0
    said = (
        "2 people judged 3 completions more than once (score); Krippendorff's alpha, 1 if they agree and 0 as by chance"
    )
    assert f"{said}: 0.83" in capsys.readouterr().out


def test_equal_judgements_have_no_agreement_to_measure_and_rankings_have_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judgements = [judged(score("x"), 3, who) for who in ("ann", "bob")]
    judgements += [judged(RANKED, [1, 2, 3], who) for who in ("ann", "bob")]
    same, ranks = measure_agreement(judgements)
    assert math.isnan(same.alpha)
    assert (ranks.mode, ranks.alpha, ranks.completions) == ("rank", pytest.approx(1), 3)
    append_judgements(tmp_path, judgements)
    assert main(["judgements", str(tmp_path)]) == 0
    assert "undefined, as all judgements are the same" in capsys.readouterr().out


def test_the_report_of_a_run_has_the_agreement_of_its_judges(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "ppo", "rollouts": 2, "batch_size": 2, "epochs": 1},
        prompts=["ab", "ba"], reward_fn=lambda outputs: [1.0 for _ in outputs], gen={"max_new_tokens": 2}, loggers=[],
        checkpoint={"at_end": False}, run={"root": str(tmp_path / "runs"), "name": "judged", "steps": 1},
    )  # fmt: skip
    append_judgements(result.run_dir, [judged(score(each), 3 + (each == "x"), who) for each in "xy" for who in "ab"])
    reward = HumanReward(HumanConfig(mode="score"))
    ranks = SimpleNamespace(world=1)
    reward.open(SimpleNamespace(dir=result.run_dir, ranks=ranks, step=0, keep_folder=lambda: None))  # type: ignore[arg-type]
    assert asyncio.run(reward([], [])) == []
    reward.close()
    said = (result.run_dir / "report" / "judgements.txt").read_text()
    assert said.splitlines()[0] == "4 judgements of 2 questions: a 2, b 2"
    assert said.endswith("alpha, 1 if they agree and 0 as by chance: 1.00\n")
    assert main(["report", str(result.run_dir)]) == 0
    assert "4 judgements of 2 questions" in (result.run_dir / "report.html").read_text()
