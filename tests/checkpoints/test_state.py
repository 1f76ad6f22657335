"""Tests of `save_state`: the loaded state equals the saved one."""

from __future__ import annotations

import math
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlcore.checkpoints.state import load_state, save_state
from rlcore.config import structure
from rlcore.errors import CheckpointError
from rlcore.settings import TrainConfig
from rlcore.sharding import SavedTensor
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import make_llama, make_tokenizer


def through(tmp_path: Path, state: Any) -> Any:
    save_state(tmp_path / "state.safetensors", state)
    return load_state(tmp_path / "state.safetensors")


def same(a: Any, b: Any) -> bool:
    """Return whether types and values are equal: 1, 1.0 and True all differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(x) is type(y) for x, y in zip(a, b, strict=True)) and all(
            same(a[key], b[key]) for key in a
        )  # fmt: skip
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**53 + 1, -(2**64) - 1, 10**400, True, False, None, "", "naïve \u2028 \udc80 \0 \"'", 0.1, 5e-324,
        1e308, float("nan"), math.inf, -math.inf, [], {}, [[], [{}]], {"a": {"b": [1, 2.0, "3", None, True]}},
        {0: "a", 1: "b", -7: "c"}, {"0": "string", 0: "number"}, {2**60: 1}, {"tensor": "x"},
        {"dict": [], "int": "0x1"}, {"z": 1, "a": 2}, {"": 1, "a.b": 2, "__metadata__": 3},
    ],
)  # fmt: skip
def test_plain_values_are_restored_equal_and_with_the_same_type(tmp_path: Path, value: Any) -> None:
    assert same(through(tmp_path, value), value)
    assert same(through(tmp_path, {"x": [value]}), {"x": [value]})


def test_the_sign_of_zero_survives(tmp_path: Path) -> None:
    assert math.copysign(1, through(tmp_path, -0.0)) == -1


def test_tuples_become_lists_and_other_mappings_dicts(tmp_path: Path) -> None:
    assert same(through(tmp_path, {"betas": (0.9, (1, 2))}), {"betas": [0.9, [1, 2]]})
    assert same(through(tmp_path, OrderedDict(b=1, a=2)), {"b": 1, "a": 2})
    assert same(through(tmp_path, np.float64(0.1)), 0.1)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float64, torch.complex64, torch.uint64],
)
def test_tensors_of_each_dtype_are_restored_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    assert same(through(tmp_path, {"t": tensor}), {"t": tensor})


def test_bfloat16_and_nan_payloads_are_restored_bit_for_bit(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, -0x400000, 0x00000001], dtype=torch.int32)
    assert through(tmp_path, bits.view(torch.float32)).view(torch.int32).equal(bits)
    halves = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    back = through(tmp_path, halves)
    assert back.dtype == torch.bfloat16
    assert back.equal(halves)


def test_scalar_and_empty_tensors_are_restored(tmp_path: Path) -> None:
    state = [torch.tensor(3.5), torch.empty(0), torch.empty(2, 0, 3), torch.tensor(True)]
    assert same(through(tmp_path, state), state)


def test_views_and_shared_tensors_are_stored_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "whole": base,
        "again": base,
        "row": base[1],
        "column": base[:, 2],
        "turned": base.T,
        "wide": base[:1].expand(2, 4),
    }
    back = through(tmp_path, state)
    for name, tensor in state.items():
        assert back[name].tolist() == tensor.tolist()
    back["whole"].zero_()
    assert back["again"].equal(base)


def test_conjugates_and_parameters_are_stored_by_value(tmp_path: Path) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    assert through(tmp_path, z.conj()).tolist() == [1 - 2j, 3 + 4j]
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not through(tmp_path, parameter).requires_grad


def test_state_keys_that_collide_in_the_file_keep_their_own_tensors(tmp_path: Path) -> None:
    state = {
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "a.b~2": torch.tensor(3),
        "__metadata__": torch.tensor(4),
    }
    assert same(through(tmp_path, state), state)


def test_a_restored_optimizer_state_continues_exactly(tmp_path: Path) -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def learn(model: torch.nn.Linear, optimizer: torch.optim.AdamW, rounds: int) -> None:
        for _ in range(rounds):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()

    model, optimizer = build()
    learn(model, optimizer, 3)
    state = through(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other, second = build()
    other.load_state_dict(state["model"])
    second.load_state_dict(state["optimizer"])
    learn(model, optimizer, 3)
    learn(other, second, 3)
    assert torch.equal(model.weight, other.weight)


def test_moments_of_optimizers_stay_in_the_file_until_their_rows_are_read(tmp_path: Path) -> None:
    moment = torch.arange(8.0).view(4, 2)
    kept = {0: {"step": torch.tensor(3.0), "exp_avg": moment, "amsgrad": False}}
    adam = {"state": kept, "param_groups": [{"params": [0]}]}
    updater = {"optimizer": adam, "schedule": {"seen": torch.arange(4)}, "scaler": None, "num_skipped": 0}
    save_state(tmp_path / "x", {"updater": updater, "own": adam})
    state = load_state(tmp_path / "x", by_rows=True)
    loaded = state["updater"]
    assert same(state["own"], adam)  # a trainer restores an optimizer of its own from whole tensors
    saved = loaded["optimizer"]["state"][0].pop("exp_avg")
    assert isinstance(saved, SavedTensor)
    assert (saved.shape, saved[1:3].tolist(), saved[4:4].shape) == (moment.shape, [[2, 3], [4, 5]], (0, 2))
    assert saved[...].equal(moment)
    saved[...].zero_()
    assert saved[...].equal(moment)
    del kept[0]["exp_avg"]
    assert same(loaded, updater)


def test_optimizer_moments_of_a_checkpoint_are_loaded_by_rows(tmp_path: Path) -> None:
    settings = {"trainer": {"name": "sft", "batch_size": 2}, "loggers": [], "run": {"root": str(tmp_path)}}
    inputs = Inputs(model=make_llama(), tokenizer=make_tokenizer(), samples=[["a", "bc"], ["d", "e"]])
    trainer = assemble(structure(TrainConfig, settings), inputs, "test").trainer
    next(iter(trainer.steps()))
    save_state(tmp_path / "x", trainer.state_dict())
    moments = load_state(tmp_path / "x", by_rows=True)["updater"]["optimizer"]["state"]
    assert len(moments) > 1
    assert all(isinstance(kept["exp_avg"], SavedTensor) for kept in moments.values())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": [1, {2}]}}, "state.a.b.1 is a builtins.set"),
        ({"a": np.int64(3)}, "state.a is a numpy.int64"),
        (object(), "state is a builtins.object"),
        ({"a": {(1, 2): 3}}, r"state.a has the key \(1, 2\)"),
        ({"a": {True: 3}}, "state.a has the key True"),
        ({"o": {0: torch.ones(2, device="meta")}}, "state.o.0 is a tensor that cannot be saved .meta"),
        ({"s": torch.eye(3).to_sparse()}, "state.s is a tensor that cannot be saved .sparse_coo"),
        ({"c": torch.ones(1, dtype=torch.complex128)}, "state.c .*complex128"),
    ],
)
def test_an_unsupported_value_in_a_state_is_named_by_its_path(tmp_path: Path, state: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        save_state(tmp_path / "x", state)
    assert not (tmp_path / "x").exists()


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(CheckpointError, match="contains itself"):
        save_state(tmp_path / "x", state)


def test_a_tree_too_large_for_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.checkpoints.state.MAX_TREE_BYTES", 1000)
    with pytest.raises(CheckpointError, match="as tensors"):
        save_state(tmp_path / "x", list(range(1000)))


@pytest.mark.slow
def test_a_state_of_a_million_numbers_is_restored(tmp_path: Path) -> None:
    numbers = list(range(10**6))
    assert through(tmp_path, numbers) == numbers


def test_a_write_that_fails_raises_os_error_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        save_state(tmp_path / "absent" / "x", {})
    assert caught.value.errno == 2
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            save_state(tmp_path / "x", torch.zeros(10**5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == 27


def test_files_that_hold_no_state_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_state(path)
    path.write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_state(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="not a state saved by rlcore"):
        load_state(path)
    save_file({"a": torch.ones(1)}, path, metadata={"rlcore.checkpoints.state": '{"schema": 9, "tree": null}'})
    with pytest.raises(CheckpointError, match="schema 9"):
        load_state(path)
    for tree in ('{"tensor": "b"}', '{"what": 1}', "{}", '{"dict": 3}'):
        save_file({"a": torch.ones(1)}, path, metadata={"rlcore.checkpoints.state": f'{{"schema": 1, "tree": {tree}}}'})
        with pytest.raises(CheckpointError, match="tree is damaged"):
            load_state(path)


def test_a_file_that_cannot_be_opened_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unable to open file <state> in read-only mode: Input/output error (5)")

    save_state(tmp_path / "state", {"t": torch.ones(2)})
    monkeypatch.setattr(torch.UntypedStorage, "from_file", fail)  # with which safetensors opens it a second time
    with pytest.raises(CheckpointError, match=r"cannot be read: unable to open file"):
        load_state(tmp_path / "state")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_state(path, {"a": torch.arange(100), "b": 3})
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load_state(path)


def test_loaded_tensors_do_not_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_state(path, {"flags": torch.ones(3, dtype=torch.bool), "t": torch.ones(5)})
    state = load_state(path)
    assert state["t"].data_ptr() % 16 == 0
    state["t"].zero_()
    assert load_state(path)["t"].tolist() == [1.0] * 5


def test_each_loaded_tensor_is_aligned_like_a_new_one(tmp_path: Path) -> None:
    # In the file they lie side by side, and kernels may sum in another order at addresses that are not aligned.
    state = {str(i): torch.ones(3) for i in range(4)} | {"flags": torch.ones(3, dtype=torch.bool)}
    save_state(tmp_path / "x", state)
    assert [tensor.data_ptr() % 64 for tensor in load_state(tmp_path / "x").values()] == [0] * 5
