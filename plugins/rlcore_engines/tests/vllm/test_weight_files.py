"""The files in which weights reach a server, and the part of them inside vLLM."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_sampler import PROMPTS, SAMPLING, SEEDS, make_policy, sampler_of
from vllm_stand_in import StandIn

from rlcore_engines.vllm import client, own_server
from rlcore_engines.vllm import weights as written_weights
from rlcore_engines.vllm.weights import WeightFiles
from rlcore_testing.rig.policies import perturb


def imported_by(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    return imported | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_the_part_inside_vllm_imports_nothing_of_rlcore_and_has_the_name_that_servers_are_checked_for() -> None:
    files = [Path(client.__file__).with_name(name) for name in own_server.WORKER]
    imported = set[str]().union(*map(imported_by, files)) - {"rlcore_engines.vllm.weight_group"}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"safetensors", "torch", "vllm"}
    assert f'BACKEND = "{client.BACKEND}"' in files[1].read_text()


def test_weights_reach_the_server_in_any_number_of_files(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And files of earlier weights, of which there were more, are deleted."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    monkeypatch.setattr(written_weights, "PIECE", 10_000)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    (model,) = (tmp_path / "weights").glob("*/model")
    files = sorted(file.name for file in model.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == "model-00001.safetensors"
    monkeypatch.setattr(written_weights, "PIECE", 2**28)
    perturb(policy)
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
    assert [file.name for file in model.iterdir() if "safetensors" in file.name] == files[:1]


@pytest.mark.slow
def test_two_runs_may_share_the_folder_of_the_weights(stand_in: StandIn, tmp_path: Path) -> None:
    """A server that lost its weights is given those of its own run, though another run has written later."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    other, elsewhere = make_policy(), StandIn()
    perturb(other)
    its_own = sampler_of(elsewhere, tmp_path)
    its_own(other, PROMPTS, SAMPLING, row_seeds=SEEDS)
    stand_in.post("/restart", None)
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert torch.equal(after["logprobs"], before["logprobs"])
    its_own.close()
    elsewhere.close()
    stand_in.post("/restart", None)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    sampler.close()
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_run_has_a_folder_of_its_own_for_weights_and_the_same_when_it_is_resumed(tmp_path: Path) -> None:
    def place_of(run: Path, shared: Path | None) -> Path:
        files = WeightFiles(None if shared is None else str(shared), has_adapter=False)
        files.use(run)
        return files.place

    shared, runs = tmp_path / "shared", tmp_path / "runs"
    places = [place_of(runs / each, shared) for each in ("a/one", "b/one", "a/one")]
    assert places[0] == places[2] != places[1]
    assert {each.parent for each in places} == {shared}
    assert place_of(runs / "a/one", None) == runs / "a/one/vllm"


def test_every_weight_is_gathered_where_none_can_be_written(tmp_path: Path) -> None:
    """The other processes would wait for this one otherwise."""
    policy, taken = make_policy(), list[str]()
    stream = policy.weights

    def weights() -> Any:
        for name, value in stream():
            taken.append(name)
            yield name, value

    policy.weights = weights  # type: ignore[method-assign]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        written_weights.write_weights(policy, tmp_path / "file" / "model")
    assert taken == [name for name, _ in stream()]
