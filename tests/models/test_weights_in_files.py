"""Tests of models that are left in their files until processes divide them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models import freezing
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the folder of a model in 16 or in 32 bits."""
    make_llama().to(request.param).save_pretrained(tmp_path)
    yield str(tmp_path)
    freezing.expect(None)


def build(folder: str, *, reference: bool = False, value_head: bool = False, **options: Any) -> Any:
    return build_causal_lm(
        folder, CausalLMConfig(**options), tokenizer=make_tokenizer(), reference=reference, value_head=value_head
    )


def dtypes(policy: Any) -> set[torch.dtype]:
    return {each.dtype for each in policy.model.parameters()}


def test_the_model_that_a_run_divides_stays_in_its_files_and_its_reference_shares_them(
    folder: str, request: pytest.FixtureRequest
) -> None:
    freezing.expect(folder)
    policy = build(folder, reference=True)
    assert dtypes(policy) == ({torch.bfloat16} if "bfloat16" in request.node.name else {torch.float32})
    assert set(policy.start_dtypes().values()) == {torch.float32}
    for own, kept in zip(policy.model.parameters(), policy.reference.parameters(), strict=True):
        assert own.data_ptr() == kept.data_ptr()
        assert not kept.requires_grad
    assert dtypes(build(folder)) == {torch.float32}  # it is loaded once


def test_weights_that_nothing_divides_become_those_of_the_usual_start(folder: str) -> None:
    freezing.expect(folder)
    late, usual = build(folder, reference=True), build(folder, reference=True)
    late.use_forward(late.module, autocast=nullcontext)
    assert not late.start_dtypes()
    for mine, other in zip(late.module.parameters(), usual.module.parameters(), strict=True):
        assert torch.equal(mine, other)
    for mine, kept in zip(late.model.parameters(), late.reference.parameters(), strict=True):
        assert mine.data_ptr() != kept.data_ptr()
    assert {each.dtype for each in late.reference.parameters()} == {torch.float32}
    assert late.model.config.dtype == usual.model.config.dtype == torch.float32


def test_a_model_whose_weights_are_copied_while_it_is_built_is_loaded_as_usual(folder: str) -> None:
    freezing.expect(folder)
    assert dtypes(build(folder, sampling_dtype="bfloat16")) == {torch.float32}


def test_frozen_blocks_stay_in_the_files_and_the_reference_has_the_same_parameters(folder: str) -> None:
    freezing.expect(folder)
    late, usual = (build(folder, reference=True, unfrozen_layers=1) for _ in range(2))
    waiting = late.start_dtypes()
    assert {id(each) for each in late.model.parameters()} | set(map(id, late.frozen_parameters().values())) == {
        *waiting
    }
    assert late.frozen_parameters().keys() == usual.frozen_parameters().keys()
    assert 0 < len(late.frozen_parameters()) < len(list(late.model.parameters()))
    late.use_forward(late.module, autocast=nullcontext)
    for model in ("model", "reference"):
        pairs = zip(getattr(late, model).parameters(), getattr(usual, model).parameters(), strict=True)
        for mine, other in pairs:
            assert mine.requires_grad is other.requires_grad
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)
    own = {each.data_ptr() for each in late.model.parameters()}
    assert all(each.data_ptr() not in own for each in late.frozen_parameters().values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_model_with_an_adapter_stays_in_files_of_the_dtype_that_the_run_wants(
    dtype: str, folder: str, request: pytest.FixtureRequest
) -> None:
    """In other files the first weights of the adapter would be rounded to the dtype of the files."""
    options = {"dtype": dtype, "peft": {"type": "lora", "r": 2, "target_modules": ["q_proj"]}}
    freezing.expect(folder)
    policy, usual = build(folder, reference=True, **options), build(folder, reference=True, **options)
    waiting = policy.start_dtypes()
    assert bool(waiting) is (str(request.node.callspec.params["folder"]) == f"torch.{dtype}")
    for (name, mine), other in zip(policy.model.named_parameters(), usual.model.parameters(), strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)
        if waiting and dtype == "bfloat16":  # weights of an adapter have 32 bits
            assert (id(mine) in waiting) is ("lora" not in name)


@pytest.mark.parametrize("options", [{"value_layers": 1}, {"critic": "copy"}])
def test_blocks_that_are_copied_for_the_value_function_stay_in_the_files(options: dict[str, Any], folder: str) -> None:
    freezing.expect(folder)
    late, usual = (build(folder, value_head=True, reference=True, **options) for _ in range(2))
    held = {each.data_ptr() for each in late.model.parameters()}
    copied = [name for name, each in late.module.value.named_parameters() if each.data_ptr() in held]
    assert [name for name, _ in late.module.value.named_parameters() if not name.startswith("head.")] == copied
    waiting = late.start_dtypes()
    assert all(id(each) in waiting for name, each in late.module.named_parameters() if "value.head" not in name)
    late.use_forward(late.module, autocast=nullcontext)
    places: list[int] = []
    for mine, other in zip(late.module.parameters(), usual.module.parameters(), strict=True):
        places.append(mine.data_ptr())
        assert mine.requires_grad is other.requires_grad
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
    assert len(set(places)) == len(places)
    copies = zip(late.module.value.named_parameters(), usual.module.value.parameters(), strict=True)
    assert all(torch.equal(mine, other) for (name, mine), other in copies if not name.startswith("head."))


def test_blocks_over_which_saved_heads_are_written_are_loaded_as_usual(folder: str, tmp_path: Path) -> None:
    build(folder, value_head=True, value_layers=1).save_pretrained(tmp_path / "saved")
    freezing.expect(tmp_path / "saved")
    policy = build(str(tmp_path / "saved"), value_head=True, value_layers=1)
    assert not policy.start_dtypes()


def test_a_model_that_no_run_divides_is_loaded_as_usual(folder: str) -> None:
    freezing.expect(None)
    assert dtypes(build(folder)) == {torch.float32}
    freezing.expect(folder)
    assert freezing.forget(folder) == folder
    assert dtypes(build(folder)) == {torch.float32}


def test_buffers_that_depend_on_the_dtype_are_those_of_the_usual_start() -> None:
    model: Any = make_llama().to(torch.bfloat16)
    model.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))
    assert not freezing.mark(model, "float32")
