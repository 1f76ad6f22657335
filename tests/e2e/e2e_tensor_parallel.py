"""A step with divided layers: e2e_tensor_parallel.py ROOT; what the rank then holds is compared with a saved model."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from e2e_scenarios import PPO
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlcore.config import merge, structure
from rlcore.settings import TrainConfig
from rlcore.sharding import streaming
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import make_llama, make_tokenizer

BY_ROWS, BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")


def own(name: str, whole: Tensor, rank: int) -> Tensor:
    """Return the half of a weight that Megatron's scheme gives a rank of two."""
    dim = 0 if any(each in name for each in BY_ROWS) else 1 if any(each in name for each in BY_COLUMNS) else None
    return whole if dim is None else whole.chunk(2, dim)[rank]


def hold(root: Path) -> None:
    """Write what this rank holds after a step of PPO: numbers of elements, and the weights that are not in the file."""
    settings = {"trainer": PPO["trainer"], "loggers": [], "gen": {"max_new_tokens": 3}}
    run = {"run": {"root": str(root), "name": "held", "shard": "tp"}}
    inputs = Inputs(model=make_llama(), tokenizer=make_tokenizer(), prompts=PPO["prompts"], reward_fn=PPO["reward_fn"])
    parts = assemble(structure(TrainConfig, merge(settings, run)), inputs, "test")
    trainer: Any = parts.trainer
    next(iter(trainer.steps()))
    policy, ranks = trainer.policy(), parts.run.ranks
    before = sum(each.numel() for each in policy.module.parameters())
    with streaming(policy, here=ranks.is_main) as whole:
        save = functools.partial(policy.save_pretrained, root / "saved")
        ranks.on_main(functools.partial(whole.finishing, save))
    saved = AutoModelForCausalLM.from_pretrained(root / "saved").state_dict()
    held = {name.removeprefix("model."): part for name, part in policy.parts() if name.startswith("model.")}
    start = make_llama().state_dict()
    moments = trainer.updater.optimizer.state.values()
    found = {
        "names": sorted(held) == sorted(saved),
        "differ": [name for name, part in held.items() if not torch.equal(own(name, saved[name], ranks.rank), part)],
        "untrained": [name for name in saved if torch.equal(saved[name], start[name])],
        "parts": sum(part.numel() for part in held.values()),
        "moments": sum(state["exp_avg"].numel() for state in moments),
        "heads": sum(part.numel() for name, part in policy.parts() if not name.startswith("model.")),
        "whole": before,
    }
    (root / f"held-{ranks.rank}.json").write_text(json.dumps(found))
    ranks.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    hold(Path(sys.argv[1]))
