"""Laws of architectures that build a `Learner` of another kind than policies and scorers: its weights and its files.

They apply to an architecture with the attribute `builds`, in place of the laws of other architectures. It is checked
with its `example_model`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from rlcore.protocols import Learner
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.policies import FOLDERS, build, examples

LEARNERS = "learners"


@law(LEARNERS)
def loading_restores_everything(subject: Subject) -> None:
    """A model that loads another's saved folder, in place, has its weights; `version` rises."""
    one, other = _build(subject), _build(subject)
    _perturb(one)
    ids, before = [id(each) for each in other.module.parameters()], other.version
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        one.save_pretrained(Path(folder))
        other.load_pretrained(Path(folder))
    weights = dict(other.module.named_parameters())
    off = [name for name, weight in one.module.named_parameters() if not weight.equal(weights[name])]
    require(not off, f"load_pretrained should restore every weight; {', '.join(off[:3])} differ: save all that trains")
    require(
        ids == [id(each) for each in other.module.parameters()],
        "parameters should stay the same objects in load_pretrained, because an optimizer may hold them",
    )
    require(other.version > before, f"version should rise with load_pretrained; it stays {before}; add 1 in it")


@law(LEARNERS)
def an_exported_folder_can_be_trained_again(subject: Subject) -> None:
    """`export` writes a folder from which the architecture builds a model, other than before training."""
    one = _build(subject)
    _perturb(one)
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as parent:
        one.export(Path(parent) / "model")
        again = _build(subject, str(Path(parent) / "model"))
    require(
        {*dict(again.module.named_parameters())} == {*dict(one.module.named_parameters())},
        "a model built from the exported folder should have the same parameters; it has others",
    )
    # The weights need not be those of `one`: an export may merge an adapter into its model.
    start = dict(_build(subject).module.named_parameters())
    require(
        any(not weight.equal(start[name]) for name, weight in again.module.named_parameters()),
        "the exported folder should have the present weights; it has those of the start: write what has been trained",
    )


@law(LEARNERS)
def something_trains(subject: Subject) -> None:
    """Some parameters of `module` require a gradient."""
    require(
        any(each.requires_grad for each in _build(subject).module.parameters()),
        "some parameter should require a gradient; none does",
    )


@law(LEARNERS)
def moving_moves_everything(subject: Subject) -> None:
    """`to` moves every parameter, and `device` is the new device."""
    one = _build(subject)
    one.to(torch.device("meta"))
    left = [name for name, parameter in one.module.named_parameters() if not parameter.is_meta]
    require(
        not left and one.device.type == "meta",
        f"everything should move; {', '.join(left[:3]) or 'device'} did not; move it in `to`",
    )


def _build(subject: Subject, spec: object = None) -> Learner:
    (make,) = examples(subject)
    built: Any = build(subject, make() if spec is None else spec, tokenizer=FOLDERS)
    return built  # type: ignore[no-any-return]


@torch.no_grad()
def _perturb(learner: Learner) -> None:
    generator = torch.Generator().manual_seed(5)
    for weight in learner.module.parameters():
        if weight.requires_grad:
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
