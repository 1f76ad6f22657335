"""Tests of models that are left in their files until processes divide them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models import start
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the folder of a model in 16 or in 32 bits."""
    make_llama().to(request.param).save_pretrained(tmp_path)
    yield str(tmp_path)
    start.expect(None)


def build(folder: str, *, reference: bool = False, **options: Any) -> Any:
    return build_causal_lm(folder, CausalLMConfig(**options), tokenizer=make_tokenizer(), reference=reference)


def dtypes(policy: Any) -> set[torch.dtype]:
    return {each.dtype for each in policy.model.parameters()}


def test_the_model_that_a_run_divides_stays_in_its_files_and_its_reference_shares_them(
    folder: str, request: pytest.FixtureRequest
) -> None:
    start.expect(folder)
    policy = build(folder, reference=True)
    assert dtypes(policy) == ({torch.bfloat16} if "bfloat16" in request.node.name else {torch.float32})
    assert set(policy.start_dtypes().values()) == {torch.float32}
    for own, kept in zip(policy.model.parameters(), policy.reference.parameters(), strict=True):
        assert own.data_ptr() == kept.data_ptr()
        assert not kept.requires_grad
    assert dtypes(build(folder)) == {torch.float32}  # it is loaded once


def test_weights_that_nothing_divides_become_those_of_the_usual_start(folder: str) -> None:
    start.expect(folder)
    late, usual = build(folder, reference=True), build(folder, reference=True)
    late.use_forward(late.module, autocast=nullcontext)
    assert not late.start_dtypes()
    for mine, other in zip(late.module.parameters(), usual.module.parameters(), strict=True):
        assert torch.equal(mine, other)
    for mine, kept in zip(late.model.parameters(), late.reference.parameters(), strict=True):
        assert mine.data_ptr() != kept.data_ptr()
    assert {each.dtype for each in late.reference.parameters()} == {torch.float32}
    assert late.model.config.dtype == usual.model.config.dtype == torch.float32


@pytest.mark.parametrize("options", [{"unfrozen_layers": 1}, {"sampling_dtype": "bfloat16"}])
def test_a_model_whose_weights_are_changed_while_it_is_built_is_loaded_as_usual(
    options: dict[str, Any], folder: str
) -> None:
    start.expect(folder)
    assert dtypes(build(folder, **options)) == {torch.float32}


def test_a_model_that_no_run_divides_is_loaded_as_usual(folder: str) -> None:
    start.expect(None)
    assert dtypes(build(folder)) == {torch.float32}
    start.expect(folder)
    assert start.forget(folder) == folder
    assert dtypes(build(folder)) == {torch.float32}


def test_buffers_that_depend_on_the_dtype_are_those_of_the_usual_start() -> None:
    model: Any = make_llama().to(torch.bfloat16)
    model.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))
    assert not start.mark(model, "float32")
