"""Tests that a run keeps the model before training where a resumed run needs it, and passes it to the architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlcore.checkpoints.run_folder import RunDir
from rlcore.errors import ModelError
from rlcore.training.models import Models
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


class Plain:
    """What is kept of a learner that is not `Restorable`: the files of `save_pretrained`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def to(self, device: torch.device) -> None:
        self.module.to(device)

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        torch.save(self.module.state_dict(), folder / "weights.pt")


def maker(build: Callable[..., Any], model: Any, place: Path, start: Path | None = None) -> Any:
    component = SimpleNamespace(name="test", target=lambda: build)
    choice: Any = SimpleNamespace(component=component, options=CausalLMConfig(), wrap=lambda built: built)
    inputs: Any = SimpleNamespace(model=model, tokenizer=make_tokenizer())
    claim: Any = SimpleNamespace(path=place, start=start, checkpoint=None)
    ranks: Any = SimpleNamespace(on_main=lambda call: call(), device="cpu")
    return Models(choice, inputs, claim, ranks)


def policy_of(maker: Any, *, reference: bool = True) -> Any:
    return maker.build(reference=reference)


def with_start(spec: Any, config: Any, *, tokenizer: Any, start: Path | None = None, **parts: Any) -> Any:
    module = nn.Linear(2, 2)
    module.load_state_dict(spec if start is None else torch.load(start / "weights.pt", weights_only=True))
    return Plain(module)


def without_start(spec: Any, config: Any, *, tokenizer: Any, value_head: bool, reference: bool) -> Any:
    module = nn.Linear(2, 2)
    module.given = spec  # type: ignore[assignment]
    return Plain(module)


def test_a_third_party_learner_with_a_reference_is_kept_and_restored_from_its_own_files(tmp_path: Path) -> None:
    first = policy_of(maker(with_start, nn.Linear(2, 2).state_dict(), tmp_path))
    start = RunDir(tmp_path).start
    assert (start / "manifest.json").exists()
    again = policy_of(maker(with_start, nn.Linear(2, 2).state_dict(), tmp_path, start))
    assert torch.equal(again.module.weight, first.module.weight)


@pytest.mark.parametrize(
    ("build", "reference"), [(with_start, False), (without_start, True)], ids=["no reference", "no argument start"]
)
def test_a_third_party_learner_is_not_kept_where_no_resumed_run_would_read_it(
    tmp_path: Path, build: Callable[..., Any], reference: bool
) -> None:
    policy_of(maker(build, nn.Linear(2, 2).state_dict(), tmp_path), reference=reference)
    assert not RunDir(tmp_path).start.exists()


def test_an_architecture_without_the_argument_start_receives_the_kept_model_in_place_of_the_user_s(
    tmp_path: Path,
) -> None:
    built = policy_of(maker(without_start, make_gpt2(), tmp_path, tmp_path / "kept"), reference=False)
    assert built.module.given == tmp_path / "kept"


def test_a_model_that_has_a_name_is_loaded_by_its_name_also_where_a_kept_one_exists(tmp_path: Path) -> None:
    make_gpt2().save_pretrained(tmp_path / "named")
    policy = policy_of(maker(build_causal_lm, str(tmp_path / "named"), tmp_path, tmp_path / "missing"))
    assert not RunDir(tmp_path).start.exists()
    assert torch.equal(policy.model.lm_head.weight, make_gpt2().lm_head.weight)


def test_a_model_in_memory_that_was_trained_starts_again_from_the_weights_that_the_run_kept(tmp_path: Path) -> None:
    model = make_gpt2()
    policy_of(maker(build_causal_lm, model, tmp_path))
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    policy = policy_of(maker(build_causal_lm, model, tmp_path, RunDir(tmp_path).start))
    assert policy.model is model
    assert torch.equal(model.lm_head.weight, make_gpt2().lm_head.weight)


def test_a_model_that_scores_the_policys_tokens_needs_the_vocabulary_that_both_state(tmp_path: Path) -> None:
    models = maker(build_causal_lm, make_gpt2(), tmp_path)
    assert policy_of(models, reference=False).vocabulary_size == 32
    with pytest.raises(ModelError, match="has a vocabulary of 40 tokens, the policy one of 32"):
        models.frozen(make_gpt2(vocab=40))
