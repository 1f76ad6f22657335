"""Tests of files that are written and read one tensor at a time: they are those of `transformers` and safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedModel

from rlcore import sharding as tensor_file
from rlcore.errors import CheckpointError
from rlcore.sharding import TensorFile, TensorStream
from rlcore_testing.small import make_gpt2, make_llama, make_t5
from rlcore_transformers.models import hub as model_files

MIXED = {
    "b": torch.arange(3, dtype=torch.bfloat16), "a": torch.tensor([True, False, True]), "scalar": torch.tensor(2.5),
    "c": torch.arange(6, dtype=torch.float64).view(3, 2).T, "empty": torch.empty(0, 4),
}  # fmt: skip


def test_a_file_written_one_tensor_at_a_time_has_the_bytes_that_safetensors_writes(tmp_path: Path) -> None:
    with TensorFile(tmp_path / "one", MIXED, {"format": "pt"}) as file:
        for name, tensor in MIXED.items():
            file.write(name, tensor)
    save_file({name: tensor.contiguous() for name, tensor in MIXED.items()}, tmp_path / "all", {"format": "pt"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "all").read_bytes()


def test_a_file_without_one_of_its_tensors_is_an_error(tmp_path: Path) -> None:
    file = TensorFile(tmp_path / "one", {name: MIXED[name] for name in ("a", "b")}, {})
    with pytest.raises(ValueError, match="not written: b"), file:
        file.write("a", MIXED["a"])


def emptied(model: PreTrainedModel) -> tuple[dict[str, Tensor] | None, list[tuple[Tensor, Tensor]]]:
    """Free the parameters of a model; return the layout of its file, and each parameter with its value."""
    weights = [(each, each.data) for each in model.parameters()]
    for parameter, whole in weights:
        parameter.data = torch.empty(0, dtype=whole.dtype)
    return model_files.file_layout(model, {id(each): whole.shape for each, whole in weights}), weights


@pytest.mark.parametrize("make", [make_llama, make_gpt2, make_t5])  # the last two are tied
def test_an_empty_model_whose_weights_arrive_one_at_a_time_is_written_as_transformers_does(
    make: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path / "whole")
    model = make()
    layout, weights = emptied(model)
    assert layout is not None
    model_files.write_model(tmp_path / "streamed", model, layout, weights)
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "streamed").iterdir()} == files


def test_a_large_model_is_written_to_several_files_and_read_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "LARGEST", 4000)
    model, other = make_llama(), make_llama(seed=1)
    layout, weights = emptied(model)
    assert layout is not None
    model_files.write_model(tmp_path, model, layout, weights)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    read = {id(each): saved[...] for each, saved in model_files.read_model(tmp_path, other, layout)}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (_, whole), parameter, plain in zip(weights, other.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(read[id(parameter)], whole)
        assert torch.equal(plain, whole)
    with pytest.raises(CheckpointError, match="its weights are not this policy's"):
        next(model_files.read_model(tmp_path, other, {**layout, "another": torch.empty(1)}))


def test_a_model_whose_weights_transformers_converts_is_not_written_by_tensor() -> None:
    config = MixtralConfig(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=32, num_local_experts=2,
    )  # fmt: skip
    assert emptied(MixtralForCausalLM(config))[0] is None


def test_a_writer_that_fails_still_joins_every_tensor() -> None:
    joined: list[float] = []
    parts = [torch.tensor(float(i)) for i in range(4)]
    stream = TensorStream(parts, lambda part: joined.append(float(part)) or part)

    def fail() -> None:
        stream.take(parts[1])
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        stream.finishing(fail)
    assert joined == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="out of the order"):
        stream.take(parts[0])


def test_a_tied_model_is_read_into_each_of_its_parameters_once(tmp_path: Path) -> None:
    model = make_gpt2()
    model.save_pretrained(tmp_path)
    layout = model_files.file_layout(model, {})
    assert layout is not None
    read = [id(parameter) for parameter, _ in model_files.read_model(tmp_path, model, layout)]
    assert sorted(read) == sorted(id(each) for each in model.parameters())
    assert load_file(tmp_path / "model.safetensors").keys() == layout.keys()
