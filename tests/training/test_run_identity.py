"""Tests of resumed runs: whatever changes the result is refused unless it is accepted, and the rest may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.checkpoints.manifest import OWN_FIELDS, write_manifest
from rlcore.checkpoints.state import load_state, save_state
from rlcore.config import merge
from rlcore.errors import CheckpointError, ConfigError
from rlcore.plugins.choice import Choice
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.sampling.sampler import DefaultSampler

PROMPTS = [{"prompt": "ab", "label": 1}, {"prompt": "cd", "label": 2}]


def count_a(outputs: list[str]) -> list[float]:
    return [float(output.count("a")) for output in outputs]


def count_b(outputs: list[str]) -> list[float]:
    return [float(output.count("b")) for output in outputs]


PPO = {
    "trainer": {"name": "ppo", "rollouts": 4, "batch_size": 4, "epochs": 1}, "prompts": PROMPTS, "reward_fn": count_a,
    "eval_prompts": ["a", "b"], "gen": {"max_new_tokens": 3}, "loggers": [], "run": {"name": "run", "steps": 1},
    "tokenizer": make_tokenizer(),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a run of one step."""
    root = tmp_path_factory.mktemp("runs")
    rlcore.train(make_gpt2(), **merge(PPO, {"run": {"root": str(root)}}))
    return root / "run" / "checkpoints" / "00000001"


def resume(checkpoint: Path, root: Path, changes: dict[str, Any], *accept: str) -> rlcore.Result:
    run = {"name": "more", "root": str(root), "steps": 2, "resume": str(checkpoint), "accept_changes": list(accept)}
    given = merge(merge(PPO, {"run": run}), changes)
    return rlcore.train(given.pop("model", make_gpt2()), **given)


def manifest_of(result: rlcore.Result) -> dict[str, Any]:
    newest = max(result.run_dir.glob("checkpoints/*"))
    return dict(json.loads((newest / "manifest.json").read_text()))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "gen": ({"gen": {"temperature": 0.5}}, r"gen\.temperature was 1\.0, is 0\.5"),
    "trainer": ({"trainer": {"optimizer": {"lr": 0.5}}}, r"trainer\.optimizer\.lr was None, is 0\.5"),
    "data.prompts": ({"prompts": [{"prompt": "ab", "label": 1}, {"prompt": "cd", "label": 3}]}, r"was '2 rows, sha"),
    "data.eval_prompts": ({"eval_prompts": ["a", "c"]}, r"was '2 rows, sha256 \w{16}', is '2 rows, sha256 \w{16}'"),
    "data.reward_fn": (
        {"reward_fn": count_b},
        r"count_a was '[\w.]*test_run_identity:count_a, source \w{16}, weight 1\.0', is 'not there'; .*count_b was",
    ),
    "data.reward_fn.count_a": ({"reward_fn": (count_a, 2)}, r"weight 1\.0', is .*, weight 2\.0'\. Resume"),
    "model.path": ({"model": make_gpt2(heads=1)}, r"model\.path\.config was '\w{16}', is '\w{16}'\. Resume"),
    "run.seed": ({"run": {"seed": 3}}, "was 0, is 3"),
    "run.mixed_precision": ({"run": {"mixed_precision": "bf16"}}, "was 'no', is 'bf16'"),
    "model.tokenizer": ({"tokenizer": make_tokenizer(pad_is_eos=True)}, r"was '\w{16}', is '\w{16}'"),
    "data.logit_mask": ({"logit_mask": [[1] * 32] * 32}, "was None, is '32 x 32, sha256"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "run.seed"])
def test_resuming_with_an_option_that_changes_the_result_is_refused_unless_accepted(
    name: str, finished: Path, tmp_path: Path
) -> None:
    changes, message = CHANGES[name]
    with pytest.raises(ConfigError, match=message):
        resume(finished, tmp_path, changes)
    assert not (tmp_path / "more").exists()
    result = resume(finished, tmp_path, changes, name)
    assert result.run.step == 2
    accepted = manifest_of(result)["accepted_changes"]
    assert accepted
    assert all(each["name"].startswith(name) and each["step"] == 1 for each in accepted)


def test_another_seed_is_refused_even_if_it_is_accepted(finished: Path, tmp_path: Path) -> None:
    changes, message = CHANGES["run.seed"]
    for accepted in ((), ("run.seed",)):
        with pytest.raises(ConfigError, match=message):
            resume(finished, tmp_path, changes, *accepted)


def test_all_differences_from_the_earlier_run_are_listed_in_one_error(finished: Path, tmp_path: Path) -> None:
    changes = merge({"run": {"seed": 1}, "gen": {"top_k": 2}}, CHANGES["data.prompts"][0])
    with pytest.raises(ConfigError, match=r"data\.prompts was .*; gen\.top_k was 0, is 2; run\.seed was 0, is 1\. "):
        resume(finished, tmp_path, changes, "model")


def test_options_that_do_not_change_the_result_may_change_on_resuming(finished: Path, tmp_path: Path) -> None:
    changes = {
        "eval": {"every": 1, "samples": 2, "gen": {"temperature": 0.1}}, "checkpoint": {"every": 1, "keep_last": 5},
        "loggers": ["console"], "run": {"rollouts": "none", "time_s": 1000},
        "metric_fn": lambda outputs: {"one": [1.0] * len(outputs)},
    }  # fmt: skip
    result = resume(finished, tmp_path, changes)
    assert result.run.step == 2
    assert manifest_of(result)["accepted_changes"] == []


@pytest.mark.slow
def test_resuming_with_another_number_of_processes_records_whether_it_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping, end = make_gpt2(), {"loggers": []}
    dropping.transformer.drop.p = 0.1

    def recorded(name: str, model: Any) -> Any:
        sections = {"samples": [["a", "b"], ["c", "d"]], "tokenizer": make_tokenizer(), **end}
        place = {"root": str(tmp_path), "name": name}
        done = rlcore.train(model, trainer="sft", **sections, run={**place, "steps": 1})
        as_if_by_two(max(done.run_dir.glob("checkpoints/*")))
        again = rlcore.train(model, trainer="sft", **sections, run={**place, "steps": 2, "resume": "auto"})
        return manifest_of(again)["changed_processes"]

    def change(*, is_exact: bool) -> list[dict[str, Any]]:
        return [{"step": 1, "was": 2, "now": 1, "is_exact": is_exact}]

    assert recorded("dropping", dropping) == change(is_exact=False)
    assert recorded("plain", make_gpt2()) == change(is_exact=True)
    build = Choice.build
    monkeypatch.setattr(Choice, "build", lambda choice: without_seeds(build(choice)))
    assert recorded("seedless", make_gpt2()) == change(is_exact=False)


def as_if_by_two(checkpoint: Path) -> None:
    """Rewrite a checkpoint as one that two processes have written."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (rng,) = load_state(checkpoint / "rng.safetensors")["ranks"]
    save_state(checkpoint / "rng.safetensors", {"ranks": [rng, rng]})
    further = {name: value for name, value in manifest.items() if name not in OWN_FIELDS}
    write_manifest(checkpoint, step=manifest["step"], score=manifest["score"], further=further | {"world": 2})


def without_seeds(built: Any) -> Any:
    """Return a sampler that takes no seeds for rows; anything else unchanged."""
    if not isinstance(built, DefaultSampler):
        return built
    return lambda policy, prompts, sampling, *, generator=None: built(policy, prompts, sampling, generator=generator)


def test_accepted_changes_stay_on_record(finished: Path, tmp_path: Path) -> None:
    once = resume(finished, tmp_path, CHANGES["gen"][0], "gen")
    again = merge(CHANGES["gen"][0], {"run": {"name": "again", "resume": str(max(once.run_dir.glob("checkpoints/*")))}})
    recorded = manifest_of(resume(finished, tmp_path, merge(again, {"run": {"steps": 3}})))
    assert recorded["accepted_changes"] == [{"step": 1, "name": "gen.temperature", "was": 1.0, "now": 0.5}]
    assert recorded["identity"]["gen.temperature"] == 0.5


def test_resuming_with_another_number_of_prompts_is_refused(finished: Path, tmp_path: Path) -> None:
    more = {"prompts": [*PROMPTS, {"prompt": "e", "label": 0}]}
    with pytest.raises(ConfigError, match=r"data\.prompts was '2 rows, sha256 \w+', is '3 rows, sha256"):
        resume(finished, tmp_path, more)
    with pytest.raises(CheckpointError, match="written with 2 prompts or samples, now there are 3"):
        resume(finished, tmp_path, more, "data.prompts")


def test_the_identity_is_on_record_in_every_checkpoint(finished: Path, tmp_path: Path) -> None:
    given = {
        name: value for name, value in PPO.items() if "prompts" not in name and name not in ("trainer", "reward_fn")
    }
    samples, sections = [["a", "b"], ["c", "d"]], {"checkpoint": {"every": 1}, "run": {"root": str(tmp_path)}}
    done = rlcore.train(
        make_gpt2(), trainer={"name": "ilql", "batch_size": 2}, samples=samples, rewards=[1.0, 2.0],
        eval_samples=samples[:1], **merge(given, sections),
    )  # fmt: skip
    of_ilql, of_ppo = manifest_of(done)["identity"], json.loads((finished / "manifest.json").read_text())["identity"]
    for recorded in (of_ilql, of_ppo):
        assert recorded["sampler.name"] == "rlcore-transformers:default"
        assert recorded["model.architecture"] == "causal_lm"
    rows = {name: str(of_ilql[f"data.{name}"])[:6] for name in ("prompts", "samples", "rewards", "eval_samples")}
    assert rows == {"prompts": "None", "samples": "2 rows", "rewards": "2 rows", "eval_samples": "1 rows"}
    assert of_ilql["data.samples"] != of_ilql["data.rewards"]
    assert of_ppo["data.eval_prompts"] != of_ppo["data.prompts"]
    assert not {"run.steps", "eval.every", "checkpoint.every", "store", "world_size"} & (of_ilql.keys() | of_ppo.keys())
