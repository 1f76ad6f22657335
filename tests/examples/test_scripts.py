"""Tests of the examples, run as users run them: as scripts, and through their configuration files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import chat
import pytest
from depths import by_day
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from warm_python import WarmPython

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
REVIEWS, PROBLEMS = DATA / "rt_polarity.jsonl", DATA / "gsm8k_test.jsonl"


@pytest.fixture
def run(tmp_path: Path, warm_python: WarmPython) -> Callable[..., str]:
    """Run a script or a module in the test's folder; return its output."""

    def start(*arguments: str | Path) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        done = warm_python.run([str(argument) for argument in arguments], cwd=tmp_path, environment=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return start


@pytest.mark.slow
def test_randomwalks_prints_its_result_and_the_folder_of_the_run(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(EXAMPLES / "randomwalks.py", "--epochs", "1", "--steps", "1", "--out", "runs")
    assert "optimality over 1000 samples: 0." in said
    assert "runs/randomwalks-ppo" in said
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "runs" / "randomwalks-ppo" / "model")
    assert model.config.n_embd == 144


def test_the_reward_of_the_chat_example_knows_no_answers_and_its_measure_does() -> None:
    long = (
        "The capital of Peru is Lima, a city of ten million people on the coast of the Pacific Ocean."  # 92 characters
    )
    outputs = ["It is Lima.", "It is Cuzco.", long, long[:64], "  "]
    assert chat.reward_fn(outputs) == [1.0, 1.0, 0.0, 0.52, 0.0]  # 1 - (64 - 40) / 50
    found = chat.metric_fn(outputs, ["Lima"] * 5)
    assert found["right"] == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert found["brief"] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert found["right_and_brief"] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert chat.metric_fn(["English, in Germany.", "San José."], ["German", "San Jose"])["right"] == [0.0, 1.0]


def test_the_chat_example_asks_of_other_countries_than_it_trains_on_and_draws_their_shares() -> None:
    trained, held_out = (
        {row["prompt"][0]["content"] for row in chat.rows(facts)} for facts in (chat.FACTS, chat.HELD_OUT)
    )
    assert (len(trained), len(held_out)) == (138, 60)
    assert not trained & held_out
    # Wilson's interval of 3 of 60: (3/60 + 1.96**2/120 -+ 1.96 sqrt(.05*.95/60 + 1.96**2/14400)) / (1 + 1.96**2/60)
    assert chat.interval(3, 60) == pytest.approx((0.05, 0.0171, 0.1370), abs=1e-4)


@pytest.mark.nightly
def test_randomwalks_ilql_prints_the_result_of_each_beta(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(EXAMPLES / "randomwalks_ilql.py", "--steps", "2", "--out", "runs")
    for beta in (0, 1, 100):
        assert f"optimality at beta {beta} over 1000 samples: 0." in said
    rows = [json.loads(line) for line in (tmp_path / "runs/randomwalks-ilql/metrics.jsonl").read_text().splitlines()]
    assert [row["loss/total"] for row in rows if "loss/total" in row][1] > 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "runs/randomwalks-ilql/model").config.n_embd == 144


@pytest.mark.slow
def test_randomwalks_rft_prints_its_result_and_the_number_of_samples(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(EXAMPLES / "randomwalks_rft.py", "--epochs", "1", "--steps", "2", "--out", "runs")
    assert re.search(r"optimality 0\.\d+ after \d+\.\d CPU seconds", said)
    rows = [json.loads(line) for line in (tmp_path / "runs/randomwalks-rft/metrics.jsonl").read_text().splitlines()]
    before, grown, improved, after = rows
    assert (before["step"], grown["step"], improved["step"], after["step"]) == (0, 1, 2, 2)
    assert "reward/mean" in grown
    assert "reward/mean" not in improved
    assert after["eval/cpu_s"] > before["eval/cpu_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("trainer", by_day(["ilql", "rloo"], ["rloo"]))
def test_the_example_of_defaults_prints_the_reward_before_and_after(
    trainer: str, run: Callable[..., str], tmp_path: Path
) -> None:
    said = run(EXAMPLES / "defaults.py", trainer, "--epochs", "1", "--steps", "1", "--out", "runs")
    found = re.search(rf"{trainer}, graph 7, seed 0: (0\.\d\d\d) before, (0\.\d\d\d) after 1 steps", said)
    assert found is not None
    lines = (tmp_path / f"runs/defaults-{trainer}/metrics.jsonl").read_text().splitlines()
    rewards = [row["eval/reward/mean"] for row in map(json.loads, lines) if "eval/reward/mean" in row]
    assert [f"{reward:.3f}" for reward in rewards] == list(found.groups())
    rate = next(row["lr"] for row in map(json.loads, lines) if "lr" in row)
    assert rate == pytest.approx({"ilql": 4.5e-4, "rloo": 6.8e-5}[trainer], rel=0.05)


def test_pairs_of_the_example_of_defaults_prefer_the_better_walk_from_the_same_start() -> None:
    from defaults import NUM_PAIRS, pairs_of
    from walks import RandomWalks

    graph = RandomWalks(7)
    means = []
    for pairs in (pairs_of(graph.walks, graph), pairs_of(graph.walks, graph, size=4)):
        assert len(pairs) == NUM_PAIRS
        scores = [[graph.optimality(pair["prompt"] + pair[name]) for name in ("chosen", "rejected")] for pair in pairs]
        assert all(better > worse for better, worse in scores)
        means.append([sum(column) / NUM_PAIRS for column in zip(*scores, strict=True)])
    (chosen, rejected), (best, others) = means
    with pytest.raises(SystemExit, match="equally good, so there are no pairs: choose another --graph-seed"):
        pairs_of([f"{start}b" for start in graph.starts], graph)
    assert best > chosen + 0.05  # the best of four, and one of the others
    assert others > rejected


@pytest.mark.nightly
def test_the_configuration_files_train_like_the_scripts(run: Callable[..., str], tmp_path: Path) -> None:
    for name in ("walks.py", "randomwalks_sft.yaml", "randomwalks_ppo.yaml", "randomwalks_grpo.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    run("walks.py", "runs/start")
    run("-m", "rlcore", "train", "randomwalks_sft.yaml", "run.epochs=1")
    run("-m", "rlcore", "train", "randomwalks_ppo.yaml", "run.steps=1")
    run("-m", "rlcore", "train", "randomwalks_grpo.yaml", "run.steps=1")
    first = json.loads((tmp_path / "runs/randomwalks-grpo/metrics.jsonl").read_text().splitlines()[0])
    assert first["group/zero_spread_fraction"] < 1
    assert first["advantage/mean"] == pytest.approx(0, abs=1e-5)
    assert 0 < first["advantage/std"] <= 1
    rows = [json.loads(line) for line in (tmp_path / "runs/randomwalks-ppo/metrics.jsonl").read_text().splitlines()]
    assert 0 < rows[-1]["eval/reward/mean"] < 1
    assert len((tmp_path / "runs/randomwalks-ppo/completions.jsonl").read_text().splitlines()) == 1000
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs/randomwalks-ppo/model")
    assert tokenizer("sda")["input_ids"] == [18, 3, 0]


def made_up_reviews(folder: Path) -> Path:
    """Write 100 sentences in which the adjective determines the label."""
    words = {1: ("lovely", "moving", "brilliant"), 0: ("dull", "tedious", "clumsy")}
    rows = [
        {"text": f"a {words[i % 2][i % 3]} film about {place} and its {i} people", "label": i % 2}
        for i, place in enumerate(["the sea", "a small town", "old friends", "the war"] * 25)
    ]
    file = folder / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("source", ["made up", "real"])
def test_the_reviews_example_trains_a_model_on_a_file(source: str, run: Callable[..., str], tmp_path: Path) -> None:
    if source == "real" and not REVIEWS.exists():
        pytest.skip(f"the film reviews are not at {REVIEWS}")
    file = REVIEWS if source == "real" else made_up_reviews(tmp_path)
    said = run(EXAMPLES / "reviews.py", file, "--quick", "--sft-epochs", "1", "--steps", "1")
    assert "held-out reviews judged rightly" in said
    assert "mean reward on" in said
    assert (tmp_path / "runs/reviews-ppo/model/config.json").exists()


@pytest.mark.nightly
def test_reviews_are_learned_from_preferences_by_each_configuration_file(
    run: Callable[..., str], tmp_path: Path
) -> None:
    said = run(EXAMPLES / "reviews_preferences.py", made_up_reviews(tmp_path), "--quick", "--sft-epochs", "1")
    assert re.search(r"reward model: [01]\.\d+ of them", said)
    rows = re.findall(r"│ (\w+) +│ (0\.\d+) +│ (-?\d+\.\d+) +│ (-?\d+\.\d) +│", said)
    assert [row[0] for row in rows] == ["sft", "grpo", "ppo", "dpo"]
    assert float(rows[0][3]) == 0  # the KL of the first writer from itself
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "runs/reviews-reward/model").num_labels == 1


@pytest.mark.slow
def test_the_gsm8k_example_learns_the_form_of_answers_from_a_rule(run: Callable[..., str], tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {i} + {k}?", "answer": f"{i} + {k} = <<{i}+{k}={i + k}>>{i + k}\n#### {i + k}"}
        for i in range(10) for k in range(10)
    ]  # fmt: skip
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run(EXAMPLES / "gsm8k_format.py", "problems.jsonl", "--quick", "--sft-epochs", "1", "--steps", "3")
    rows_said = re.findall(r"│ (\d) to (\d) │(.*)│", said)
    assert [row[:2] for row in rows_said] == [("1", "1"), ("2", "2"), ("3", "3")]
    assert "nan" not in said


def test_answers_of_gsm8k_have_the_form_that_the_rule_rewards() -> None:
    from gsm8k_format import formed

    right = "48/2 = <<48/2=24>>24 clips\n#### 24"
    assert formed([right, f" {right}", right.removesuffix("24"), right + ".", "#### 24", "24 clips\n#### 24"]) == [
        1, 1, 0, 0, 0, 0,
    ]  # fmt: skip
    if PROBLEMS.exists():
        answers = [json.loads(line)["answer"] for line in PROBLEMS.read_text(encoding="utf-8").splitlines()]
        assert sum(formed(answers)) > 0.7 * len(answers)


@pytest.mark.slow
def test_the_example_of_short_sentences_logs_both_rewards_by_their_names(
    run: Callable[..., str], tmp_path: Path
) -> None:
    said = run(EXAMPLES / "short_sentences.py", "--steps", "2", "--out", "runs")
    steps = re.findall(r"step +(\d): sentence \d\.\d\d, short -0\.\d\d, \d+\.\d tokens\n", said)
    assert steps == ["1", "2"]
    rows = [json.loads(line) for line in (tmp_path / "runs/short-sentences/rollouts.jsonl").read_text().splitlines()]
    for row in rows:
        is_sentence = re.fullmatch(r"[a-z][a-z ]*[.]", row["output"]) is not None
        assert row["reward/sentence"] == float(is_sentence)
        assert row["reward"] == pytest.approx(row["reward/sentence"] + 0.2 * row["reward/short"], abs=1e-6)
    assert rows


@pytest.mark.nightly
def test_the_translation_example_trains_a_t5_from_random_weights(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(EXAMPLES / "translation_t5.py", "--epochs", ".1", "--steps", "1", "--out", "runs")
    assert "right of 500 held-out numbers: 0.000 before PPO" in said
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "runs/translation-ppo/model").config.d_model == 96


@pytest.mark.nightly
def test_the_example_of_distillation_compares_five_ways(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(
        EXAMPLES / "distill.py", "--teacher-epochs", ".02", "--start-steps", "1", "--steps", "1", "--out", "runs"
    )
    shares = re.findall(r"(teacher|before|sft|forward KL|half on-policy|on-policy|sequence-level) +│ (\d\.\d{3})", said)
    assert len(shares) == 7
    assert {label for label, _ in shares} >= {"teacher", "sequence-level"}
    metrics = [json.loads(line) for line in (tmp_path / "runs/half-on-policy/metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["data/on_policy_fraction"] == 0.5
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "runs/on-policy/model").config.hidden_size == 64


@pytest.mark.slow
def test_the_ddpo_example_prints_the_rise_of_the_reward(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(EXAMPLES / "ddpo.py", "--rounds", "1", "--reward", "compressibility")
    assert re.search(r"compressibility: -0\.\d+ -> -0\.\d+, a rise of .* standard errors", said)


@pytest.mark.nightly
def test_the_ddpo_example_learns_and_its_control_does_not(run: Callable[..., str]) -> None:
    rises = {}
    for name, options in (("trained", ()), ("control", ("--control",))):
        said = run(EXAMPLES / "ddpo.py", *options)
        found = re.search(r"a rise of (\S+), or (\S+) standard errors", said)
        assert found is not None
        rises[name] = [float(number) for number in found.groups()]
    assert rises["trained"][0] > 0.004
    assert rises["trained"][1] > 5
    assert rises["control"][0] < 0.001


@pytest.mark.nightly
def test_the_calculator_is_called_by_a_policy_that_imitates_the_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import calculator

    result = calculator.train(0, epochs=1, steps=1, root=str(tmp_path))
    rows = [json.loads(line) for line in (result.run_dir / "completions.jsonl").read_text().splitlines()]
    assert max(row["episode/tool_calls"] or 0 for row in rows) >= 1
    assert 0 <= result.metrics["eval/reward/mean"] < 0.5
    assert calculator.right_answer([["[add(a=1,b=2)]", "3"], ["3"], ["[add(a=1,b=2)]", "4"]], [3, 3, 3]) == [1, 1, 0]
