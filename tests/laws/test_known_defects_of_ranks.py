"""Regression tests for defects known from other libraries: several processes, and model folders."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from known_defects import LEARNERS, PROMPTS, learn
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import make_gpt2


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every learner in two processes at once, and return the output folder."""
    root = tmp_path_factory.mktemp("company")
    call_on_two_ranks("known_defects:learn_in_company", {"root": str(root)}, what="learning on two ranks")
    return root


def seen_by_both(company: Path, learner: str) -> list[dict[str, Any]]:
    return [json.loads((company / f"{learner}-seen-{rank}.json").read_text()) for rank in (0, 1)]


def rows_of(company: Path, learner: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (company / learner / "metrics.jsonl").read_text().splitlines()]


# trlX #597, #581, #580: in plain data-parallel training, attributes behind the wrapper were inaccessible, safetensors
# checkpoints did not load, and models made from a configuration crashed.
@pytest.mark.slow
@pytest.mark.parametrize("learner", list(LEARNERS))
def test_a_model_from_a_configuration_trains_and_is_restored_on_two_ranks(company: Path, learner: str) -> None:
    for seen in seen_by_both(company, learner):
        assert (seen["wrapped"], seen["width"], seen["blocks"], seen["outputs"]) == (True, 16, 2, 2)
    assert [row["step"] for row in rows_of(company, learner)] == [1, 2, 3]  # the third in another run, resumed
    run = company / learner
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.suffix for path in files} == {".html", ".json", ".jsonl", ".yaml", ".safetensors", ".md", ".txt"}
    last = load_file(run / "checkpoints/00000003/model/model.safetensors")
    for folder in (run / "checkpoints/00000003/model", run / "model", company / f"{learner}-saved"):
        loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.equal(weight, loaded[name]) for name, weight in last.items())


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_a_folder_of_several_safetensors_files_is_a_model(tmp_path: Path, learner: str) -> None:
    model = make_gpt2(seed=5)
    model.save_pretrained(tmp_path / "given", max_shard_size="20KB")
    assert len(list((tmp_path / "given").glob("*.safetensors"))) > 1
    done = learn(learner, str(tmp_path / "given"), tmp_path, run={"steps": 0})
    weights = done.policy.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    again = learn(learner, str(done.run_dir / "model"), tmp_path, run={"steps": 1, "name": "again"})
    assert again.run.step == 1


# trlX gathered all samples on rank 0 and computed rewards there alone, while the other ranks waited until a timeout.
@pytest.mark.slow
@pytest.mark.parametrize("learner", [name for name, given in LEARNERS.items() if "reward_fn" in given])
def test_every_rank_asks_for_the_rewards_of_its_own_samples(company: Path, learner: str) -> None:
    first, second = (seen["asked"] for seen in seen_by_both(company, learner))
    rounds = [row for row in rows_of(company, learner) if "reward/mean" in row]
    for ours, theirs, row in zip(first, second, rounds, strict=True):
        assert len(ours[1]) == len(theirs[1]) > 0
        assert row["reward/mean"] == pytest.approx(mean(ours[2] + theirs[2]), abs=1e-4)
        dealt = ours[0] + theirs[0]
        assert Counter(dealt) == Counter(PROMPTS * (len(dealt) // len(PROMPTS)))
