"""Tests that only files that a manifest lists are read as weights, in every kind of folder that a run writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_making import folder, write

import rlcore
from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.manifest import verify_files, verify_model, write_manifest
from rlcore.errors import CheckpointError, DamagedCheckpoint
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer
from rlcore_transformers.models.loading import load_model
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.peft.adapters import find_adapters
from rlcore_transformers.models.peft.inject import attach
from rlcore_transformers.models.tokenizers import load_tokenizer

__all__ = ["folder"]  # a fixture
UNREAD = r"is not among the files that manifest.json of this model or checkpoint lists, and would be read"
UNLISTED = f"{UNREAD} as weights"


def saved(place: Path, *, shard: str = "50GB") -> Any:
    """Save a new model with a manifest, and return it."""
    model = make_gpt2()
    model.save_pretrained(place, max_shard_size=shard)
    write_manifest(place, step=1, score=None, further={})
    return model


@pytest.mark.parametrize(
    "name",
    [
        "model/model.safetensors", "model/model-00001-of-00002.safetensors", "model/model.safetensors.index.json",
        "model/adapter_config.json", "model/adapter_model.safetensors", "model/heads.safetensors",
        "model/model.dcp/shard-00003-00001-of-00001.safetensors", "trainer.dcp/shard-00001.safetensors",
    ],
)  # fmt: skip
def test_a_checkpoint_with_weights_that_its_manifest_does_not_list_is_refused_and_not_skipped(
    folder: Path, name: str
) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1)
    newest = write(checkpoints, 2)
    (newest / name).parent.mkdir(exist_ok=True)
    (newest / name).write_bytes(b"left by an older copy")
    with pytest.raises(CheckpointError, match=rf"{name}: {UNLISTED}.*move it away") as found:
        Checkpoints(folder).newest_whole()
    assert not isinstance(found.value, DamagedCheckpoint)
    (newest / name).unlink()
    whole = Checkpoints(folder).newest_whole()
    assert whole is not None
    assert whole.path == newest


@pytest.mark.parametrize("name", ["notes.txt", "model/README.md", ".cache/x.safetensors", "model/.old.safetensors"])
def test_further_files_that_are_not_read_as_weights_are_ignored(folder: Path, name: str) -> None:
    path = write(Checkpoints(folder), 1)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("mine")
    assert Checkpoints.open(path).step == 1


def test_the_model_before_training_is_read_from_listed_files_only(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_model.safetensors").touch()
    with pytest.raises(CheckpointError, match=UNLISTED):
        verify_files(tmp_path, {"model.safetensors": {}})


def test_a_model_copied_over_an_older_one_is_refused_where_a_mixture_would_be_read(tmp_path: Path) -> None:
    """`transformers` prefers model.safetensors, so the older weights would be trained."""
    saved(tmp_path / "older")
    newer = saved(tmp_path / "newer", shard="10KB")
    assert not (tmp_path / "newer/model.safetensors").exists()
    shutil.copytree(tmp_path / "newer", tmp_path / "older", dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match=rf"older/model.safetensors: {UNLISTED}"):
        load_model(str(tmp_path / "older"), CausalLMConfig())
    (tmp_path / "older/model.safetensors").unlink()
    loaded = load_model(str(tmp_path / "older"), CausalLMConfig())
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), newer.parameters(), strict=True))


@pytest.mark.parametrize("within", ["", "model"], ids=["in the folder", "in the checkpoint above"])
def test_weights_that_differ_from_the_manifest_of_a_saved_model_are_not_trained(tmp_path: Path, within: str) -> None:
    place = tmp_path / within
    make_gpt2().save_pretrained(place)
    (tmp_path / "note.txt").write_text("a")
    write_manifest(tmp_path, step=1, score=None, further={})
    (tmp_path / "note.txt").write_text("b")  # no weights
    load_model(str(place), CausalLMConfig())
    data = bytearray((place / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (place / "model.safetensors").write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"model.safetensors: is damaged: its checksum"):
        load_model(str(place), CausalLMConfig())


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "added_tokens.json", "generation_config.json", "modeling_x.py"]
)
def test_an_older_file_of_the_tokenizer_or_the_configuration_is_not_read_either(tmp_path: Path, name: str) -> None:
    make_gpt2().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    write_manifest(tmp_path, step=1, score=None, further={})
    load_tokenizer(str(tmp_path))
    (tmp_path / name).write_text("{}")
    for load in (lambda: load_model(str(tmp_path), CausalLMConfig()), lambda: load_tokenizer(str(tmp_path))):
        with pytest.raises(CheckpointError, match=rf"{name}: {UNREAD};.*move it away"):
            load()


def test_a_changed_tokenizer_or_configuration_is_refused_until_the_manifest_is_deleted(tmp_path: Path) -> None:
    make_gpt2().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    write_manifest(tmp_path, step=1, score=None, further={})
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"layer_norm_epsilon": 1e-05', '"layer_norm_epsilon": 0.5'))
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"A"'))
    with pytest.raises(DamagedCheckpoint, match=r"config\.json: is damaged.*on purpose, delete .*manifest\.json"):
        load_model(str(tmp_path), CausalLMConfig())
    with pytest.raises(DamagedCheckpoint, match=r"json: is damaged.*on purpose, delete .*manifest\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    load_model(str(tmp_path), CausalLMConfig())
    load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "left", [b"", b"\0" * 64, b'{\n "schema": 1,\n "step": 2,\n "cre'], ids=["empty", "zeros", "cut"]
)
@pytest.mark.parametrize("within", ["", "model"], ids=["in the folder", "in the checkpoint above"])
def test_a_manifest_that_a_crash_has_left_incomplete_is_no_manifest_of_another_program(
    tmp_path: Path, left: bytes, within: str
) -> None:
    place = tmp_path / within
    make_gpt2().save_pretrained(place)
    (tmp_path / "manifest.json").write_bytes(left)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json: is damaged"):
        load_model(str(place), CausalLMConfig())


def test_an_adapter_beside_unlisted_weights_is_refused(tmp_path: Path) -> None:
    model = make_gpt2()
    attach(model, {"type": "lora", "r": 2})
    adapters = find_adapters(model)
    assert adapters is not None
    adapters.save(tmp_path)
    write_manifest(tmp_path, step=1, score=None, further={})
    attach(make_gpt2(), str(tmp_path))
    (tmp_path / "adapter_model-old.safetensors").touch()
    with pytest.raises(CheckpointError, match=UNLISTED):
        attach(make_gpt2(), str(tmp_path))


def test_models_with_a_foreign_manifest_or_without_one_are_loaded_unchecked(tmp_path: Path) -> None:
    make_gpt2().save_pretrained(tmp_path)
    load_model(str(tmp_path), CausalLMConfig())
    (tmp_path / "manifest.json").write_text('{"files": ["model.safetensors"]}')
    load_model(str(tmp_path), CausalLMConfig())


def trained(root: Path, name: str) -> Any:
    trainer = {"name": name, **({"batch_size": 2} if name == "sft" else {})}
    data: Any = {"rewards": [1.0] * len(SAMPLES)} if name == "ilql" else {}
    return rlcore.train(
        make_gpt2(), trainer=trainer, samples=[list(sample) for sample in SAMPLES], tokenizer=make_tokenizer(),
        run={"root": str(root), "name": name, "steps": 1, "report": False}, loggers=[], **data,
    )  # fmt: skip


def test_a_trained_model_has_a_manifest_wherever_it_is_saved(tmp_path: Path) -> None:
    """A second model in the same folder takes the place of the first, whose heads it does not have."""
    place, foreign = tmp_path / "saved", tmp_path / "foreign"
    ilql, sft = trained(tmp_path, "ilql"), trained(tmp_path, "sft")
    ilql.save_pretrained(place)
    assert (place / "heads.safetensors").exists()
    sft.save_pretrained(place)
    foreign.mkdir()
    (foreign / "large.safetensors").touch()
    sft.save_pretrained(foreign)
    assert not (foreign / "manifest.json").exists()
    (place / "chat_template.jinja").write_text("left by the first model")
    write_manifest(place, step=1, score=None, further={})
    sft.save_pretrained(place)
    assert not (place / "chat_template.jinja").exists()
    for saved_model in (place, sft.run_dir / "model"):
        listed = json.loads((saved_model / "manifest.json").read_text())["files"]
        assert listed.keys() == {path.name for path in saved_model.iterdir()} - {"manifest.json"}
        assert "heads.safetensors" not in listed
        (saved_model / "further.safetensors").touch()
        with pytest.raises(CheckpointError, match=UNLISTED):
            verify_model(saved_model)
