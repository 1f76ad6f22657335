"""Laws of architectures that build a `Learner` of another kind than policies and scorers: its weights and its files.

They apply to an architecture with the attribute `builds`, in place of the laws of other architectures. It is checked
with its `example_model`.

Also in this file: laws of strategies that divide a model among processes.

Also in this file: optimizer steps with a strategy of sharding, in processes of their own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from rlcore.errors import ConfigError
from rlcore.optim.updater import Updater
from rlcore.plugins.registry import registries
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig, RunConfig
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.compare_runs import make_batch
from rlcore_testing.rig.gradient_noise import GradientNoise, noise_seed
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.rig.policies import FOLDERS, build, examples
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

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
    """`export` writes a folder from which the architecture builds a model."""
    one = _build(subject)
    _perturb(one)
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as parent:
        one.export(Path(parent) / "model")
        again = _build(subject, str(Path(parent) / "model"))
    require(
        {*dict(again.module.named_parameters())} == {*dict(one.module.named_parameters())},
        "a model built from the exported folder should have the same parameters; it has others",
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


def _build(subject: Subject, spec: Any = None) -> Learner:
    (make,) = examples(subject)
    built: Any = build(subject, make() if spec is None else spec, tokenizer=FOLDERS)
    return built  # type: ignore[no-any-return]


@torch.no_grad()
def _perturb(learner: Learner) -> None:
    generator = torch.Generator().manual_seed(5)
    for weight in learner.module.parameters():
        if weight.requires_grad:
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))


SHARDINGS = "shardings"
STEPS = "rlcore_testing.laws.learners:make_steps"
CLOSE = 1e-5


@law(SHARDINGS)
def two_processes_make_the_steps_of_one(subject: Subject) -> None:
    """Optimizer steps on two processes are those of one with the whole model, or an error names `run.shard`."""
    noise = noise_seed()
    one = call_in_new_process(STEPS, {"name": "rlcore:none", "noise": noise}, what="steps of one process")
    two = call_on_two_ranks(STEPS, {"name": subject.it.qualified}, what=f"steps of {subject.it} on two processes")
    if refused := two["refused"]:
        require("run.shard" in refused, f"its error does not name run.shard, which the user has to change: {refused}")
        return
    worst = max(abs(mine - its) for mine, its in zip(one["weights"], two["weights"], strict=True))
    require(
        worst <= CLOSE,
        f"after 3 steps weights differ by {worst:.1e} from those of one process; a loss is a share of a sum over all "
        "processes, so gradients are added up, and weights are read with policy.weights()",
    )


SHARDED_STEPS, ROWS = 3, 4


def make_steps(name: str, *, noise: int = 0) -> dict[str, Any]:
    """Make optimizer steps on rows that the processes share, and return the trained weights.

    Args:
        name: the full name of the strategy.
        noise: seed of noise in the gradients (`rlcore_testing.rig.gradient_noise`); 0 for none.

    Returns:
        `weights`, or in `refused` the message of the error with which the strategy refuses.
    """
    torch.manual_seed(0)
    component, ranks = registries().shardings.get(name), Ranks()
    policy = build_causal_lm(make_llama(), CausalLMConfig(), tokenizer=make_tokenizer())
    config = OptimizerConfig(lr=1e-2, eps=1e-2, max_grad_norm=0.0)  # so that the scale of gradients counts
    try:
        sharding = component.target()(RunConfig(shard=component.qualified), ranks)
        updater = Updater(policy, config, ranks, total_updates=SHARDED_STEPS, sharding=sharding)
    except ConfigError as error:
        return {"refused": str(error), "weights": []}
    if noise:
        added = GradientNoise(noise)
        added.watch(policy.module)
        updater.optimizer.register_step_pre_hook(added.add)
    for step in range(SHARDED_STEPS):
        whole = make_batch(step, height=ROWS)
        rows = torch.arange(ROWS)[ranks.rank :: ranks.world]
        part, total = whole.rows(rows), whole.action_mask.sum()
        with updater.exchanging(last=True):
            updater.backward(-(policy.score(part).logprobs * part.action_mask).sum() / total)
        updater.step()
    policy.gather()
    return {"refused": "", "weights": torch.cat([weight.flatten() for _, weight in policy.weights()]).tolist()}
