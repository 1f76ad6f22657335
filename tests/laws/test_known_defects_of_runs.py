"""Regression tests for defects known from other libraries: configuration, checkpoints, files on disk, a task."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from known_defects import LEARNERS, PROMPTS, arguments, count_a, learn
from walks import NUM_NODES, RandomWalks, letter, model_config, tokenizer

import rlcore
from rlcore.config import merge
from rlcore.errors import ConfigError
from rlcore_testing.small import make_gpt2


@pytest.fixture(params=list(LEARNERS))
def learner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# trlX's TRLConfig.update silently dropped unknown nested keys and modified the base that was passed in.
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainer": {"optimizer": {"lrr": 1e-3}}}, r"trainer\.optimizer\.lrr.*lr"),
        ({"trainer": {"optimiser": {"lr": 1e-3}}}, r"trainer\.optimiser.*optimizer"),
        ({"model": {"unfrozen_layer": 1}}, r"model\.unfrozen_layer.*unfrozen_layers"),
        ({"gen": {"temprature": 2}}, r"gen\.temprature.*temperature"),
        ({"eval": {"gen": {"temprature": 2}}}, r"eval\.gen.*temprature.*temperature"),
        ({"eval": {"evry": 2}}, r"eval\.evry.*every"),
        ({"checkpoint": {"keeplast": 2}}, r"checkpoint\.keeplast.*keep_last"),
        ({"data": {"add_boss": True}}, r"data\.add_boss.*add_bos"),
        ({"run": {"seeds": 2}}, r"run\.seeds.*seed"),
        ({"plugins": {"disabled": ["x"]}}, r"plugins\.disabled.*disable"),
        ({"loggers": [{"name": "console", "colour": 1}]}, r"colour"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unknown_key_is_an_error_however_deep(
    tmp_path: Path, learner: str, change: dict[str, Any], told: str
) -> None:
    given = {name: value for name, value in arguments(learner, tmp_path).items() if name != "loggers"}
    change = {**change, "model": {"path": make_gpt2().config, **change.get("model", {})}}
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        rlcore.train(**given, config=change)
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        rlcore.train(**merge(given, change))
    assert not any(tmp_path.iterdir())


def test_merging_changes_neither_the_configuration_nor_neighbouring_options(tmp_path: Path, learner: str) -> None:
    base = {
        "trainer": {"name": learner, "optimizer": {"lr": 1e-3, "betas": [0.5, 0.6]}}, "gen": {"top_k": 7},
        "model": {"path": make_gpt2().config}, "run": {"steps": 1, "root": str(tmp_path), "name": "one"}, "loggers": [],
        "eval": {"gen": {"temperature": 0.5}},
    }  # fmt: skip
    given = {name: value for name, value in arguments(learner, tmp_path).items() if name not in base}
    before = copy.deepcopy({name: value for name, value in base.items() if name != "model"})
    changes = {"trainer": {"optimizer": {"lr": 2e-3}}, "gen": {"max_new_tokens": 3}, "eval": {"gen": {"top_p": 0.5}}}
    done = rlcore.train(**given, config=base, **copy.deepcopy(changes))
    assert {name: value for name, value in base.items() if name != "model"} == before
    assert changes == {
        "trainer": {"optimizer": {"lr": 2e-3}}, "gen": {"max_new_tokens": 3}, "eval": {"gen": {"top_p": 0.5}}
    }  # fmt: skip
    config = done.run.config
    told = [config.trainer["optimizer"][name] for name in ("lr", "betas")]
    assert told in ([2e-3, [0.5, 0.6]], [2e-3, (0.5, 0.6)])
    assert (config.gen.top_k, config.gen.max_new_tokens) == (7, 3)
    assert dict(config.eval.gen) == {"temperature": 0.5, "top_p": 0.5}


@pytest.mark.slow
# trlX #412: save_best looked up a fixed reward key, which an evaluation sweep renames, so no best was ever saved.
@pytest.mark.parametrize(
    ("metric", "mode"),
    [("eval/reward/mean", "max"), ("eval/reward/mean@temperature=0.5", "max"), ("eval/chars", "min")],
)
def test_the_best_checkpoint_is_kept_under_a_sweep_by_any_metric(
    tmp_path: Path, learner: str, metric: str, mode: str
) -> None:
    def metric_fn(outputs: list[str]) -> dict[str, list[float]]:
        return {"chars": [float(len(output)) for output in outputs]}

    temperatures = [0.5, 1.5]
    done = learn(
        learner, make_gpt2(), tmp_path, reward_fn=count_a, metric_fn=metric_fn, eval_prompts=PROMPTS,
        eval={"every": 1, "gen": {"temperature": temperatures}}, run={"steps": 6},
        trainer={"optimizer": {"lr": 3e-2}},
        checkpoint={"keep_last": 1, "keep_best": 1, "metric": metric, "mode": mode},
    )  # fmt: skip
    rows = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if "eval/reward/mean@temperature=1.5" in row]
    suffixes = [""] if "@" in metric else [f"@temperature={value}" for value in temperatures]
    pick = {"max": max, "min": min}[mode]
    scores = {row["step"]: pick(row[metric + suffix] for suffix in suffixes) for row in evaluations}
    assert len(set(scores.values())) > 1
    best = [step for step, score in scores.items() if score == pick(scores.values())]
    kept = {int(path.name) for path in (done.run_dir / "checkpoints").iterdir()}
    assert kept in [{6, step} for step in best]
    for step in kept:
        manifest = json.loads((done.run_dir / f"checkpoints/{step:08d}/manifest.json").read_text())
        assert manifest["score"] == scores[step]


# trlX #207, TRL #2045: metrics and completions were available only through one vendor's logger.
def test_metrics_and_completions_are_on_disk_without_any_logger(tmp_path: Path, learner: str) -> None:
    done = learn(learner, make_gpt2(), tmp_path, reward_fn=count_a, eval_prompts=PROMPTS, eval={"every": 2})
    metrics = [json.loads(line) for line in (done.run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [row["step"] for row in metrics if any(name.startswith("loss/") for name in row)]
    assert losses == [1, 2, 3]
    rows = [json.loads(line) for line in (done.run_dir / "completions.jsonl").read_text().splitlines()]
    for step in (2, 3):
        shown = [row for row in rows if row["step"] == step]
        assert [row["prompt"] for row in shown] == PROMPTS
        rewards = count_a([row["output"] for row in shown])
        assert [row["reward"] for row in shown] == pytest.approx(rewards)
        [said] = [row["eval/reward/mean"] for row in metrics if row["step"] == step and "eval/reward/mean" in row]
        assert said == pytest.approx(mean(rewards))


# trlX's random walks divided 0 by 0 where the shortest path of a start has the maximum walk length.
def test_a_start_without_a_short_path_has_an_optimality_and_can_be_trained_on(tmp_path: Path) -> None:
    graph = next(graph for graph in map(RandomWalks, range(1000)) if any(length >= 10 for length in graph.shortest[1:]))
    lost = [letter(node) for node in range(1, NUM_NODES) if graph.shortest[node] >= 10]
    assert lost
    walks = [*graph.walks, *(start + end for start in lost for end in ("", "a", "bcdefghij"))]
    scores = [graph.optimality(walk) for walk in walks]
    assert all(math.isfinite(score) and 0 <= score <= 1 for score in scores)
    assert all(score == 0 for walk, score in zip(walks, scores, strict=True) if walk[0] in lost)
    done = rlcore.train(
        model_config(tiny=True), tokenizer=tokenizer(), trainer={"name": "ppo", "rollouts": 20, "batch_size": 20},
        prompts=lost, reward_fn=lambda samples: [graph.optimality(walk) for walk in samples], loggers=[],
        gen={"max_new_tokens": 9}, run={"steps": 2, "root": str(tmp_path)},
    )  # fmt: skip
    assert done.metrics["reward/mean"] == 0
    assert math.isfinite(done.metrics["loss/total"])
