"""Small trainings that the tests run in separate processes; each is a set of arguments of `rlcore.train`."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from transformers import GPT2Config, GPT2LMHeadModel

import rlcore
from rlcore.checkpoints.state import load_state, save_state
from rlcore.config import merge, structure
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Trajectories
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer

LETTERS = "abcdefghij"
WORDS = ["".join(random.Random(i).choices(LETTERS, k=2 + i % 5)) for i in range(23)]


# The key bias of GPT-2 has a gradient of rounding errors only, which Adam amplifies to full steps. Llama has no such
# bias, so tests that compare results up to rounding use a Llama.


def model_config(dropout: float = 0.0) -> GPT2Config:
    return GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=64, bos_token_id=30, eos_token_id=30,
        pad_token_id=31, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, initializer_range=0.3,
    )  # fmt: skip


def save_model(folder: Path, dropout: float = 0.0) -> Path:
    torch.manual_seed(7)
    GPT2LMHeadModel(model_config(dropout)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def count_a(outputs: list[str]) -> list[float]:
    return [output.count("a") - 0.1 * len(output) for output in outputs]


def has_a(outputs: list[str]) -> list[float]:
    """Reward that groups of responses often share, so that GRPO refills its rounds."""
    return [float("a" in output) for output in outputs]


def noisy_length(outputs: list[str]) -> dict[str, list[float]]:
    """Metric that consumes random numbers of the global generators."""
    random.random()
    torch.rand(3)
    return {"chars": [float(len(output)) for output in outputs]}


class Signalling:
    """Wrapper of a function that sends a signal to this process at call number `at`."""

    def __init__(self, function: Any, at: int, *numbers: int) -> None:
        functools.update_wrapper(self, function)  # a resumed run has the function alone
        self.function, self.at, self.numbers, self.calls = function, at, numbers, 0

    def __call__(self, outputs: list[str]) -> Any:
        self.calls += 1
        if self.calls == self.at:
            for number in self.numbers:
                os.kill(os.getpid(), number)
        return self.function(outputs)


SFT = {
    "samples": [[word[:1], word[1:]] for word in WORDS],
    "eval_samples": [["a", "bc"], ["d", "efgh"], ["b", "a"]],
    "eval_prompts": ["a", "bc", "def"],
    "metric_fn": noisy_length,
    "trainer": {"name": "sft", "batch_size": 5, "micro_batch_size": 3, "optimizer": {"lr": 3e-3, "max_grad_norm": 1.0}},
}
PPO = {
    "prompts": WORDS,
    "eval_prompts": ["a", "bc", "def"],
    "reward_fn": count_a,
    "metric_fn": noisy_length,
    "trainer": {
        "name": "ppo", "rollouts": 10, "batch_size": 4, "micro_batch_size": 3, "epochs": 2, "kl_coef": 0.1,
        "kl_target": 0.5, "kl_horizon": 100, "score_scaling": "running", "optimizer": {"lr": 3e-3},
    },
}  # fmt: skip
ROUNDS = {name: PPO[name] for name in ("prompts", "eval_prompts", "metric_fn")}
GRPO = ROUNDS | {
    "reward_fn": has_a,
    "trainer": {
        "name": "grpo", "rollouts": 12, "num_generations": 3, "zero_spread": "refill", "refill_batches": 3,
        "iterations": 2, "minibatches": 2, "kl_coef": 0.05, "optimizer": {"lr": 3e-3},
    },
}  # fmt: skip
RFT = ROUNDS | {
    "reward_fn": count_a,
    "trainer": {
        "name": "rft", "prompts": 7, "generations": 3, "batch_size": 5, "improve_steps": 2, "optimizer": {"lr": 3e-3},
    },
}  # fmt: skip
REINFORCE = ROUNDS | {
    "reward_fn": count_a, "trainer": {"name": "reinforce", "rollouts": 11, "optimizer": {"lr": 3e-3}},
}  # fmt: skip
COMMON = {
    "gen": {"max_new_tokens": 6},
    "eval": {"every": 2, "at_end": False},
    "checkpoint": {"every": 2},
    "loggers": [],
}


def arguments(name: str, base: Path) -> dict[str, Any]:
    """Return the arguments of `rlcore.train`; `base` is a folder with a model where a scenario needs one."""
    tokenizer = make_tokenizer()
    if name == "sft_config":
        return SFT | COMMON | {"model": model_config(0.1), "tokenizer": tokenizer}
    if name == "sft_plain":
        return SFT | COMMON | {"model": make_llama(), "tokenizer": tokenizer}
    if name == "sft_lora":
        return SFT | COMMON | {"model": {"path": make_llama()}, "tokenizer": tokenizer}
    if name == "sft_folder":
        scheduled = {"optimizer": {"lr": 3e-3, "scheduler": "linear", "warmup_steps": 2}}
        return merge(SFT | COMMON, {"model": str(base), "trainer": scheduled})
    if name == "ppo_config":
        model = {"path": model_config(0.1), "unfrozen_layers": 1}
        return merge(PPO | COMMON, {"gen": {"top_k": 5}}) | {"model": model, "tokenizer": tokenizer}
    if name == "ppo_module":
        model = {"path": make_gpt2(), "value_layers": 1}
        return PPO | COMMON | {"model": model, "tokenizer": tokenizer}
    if name == "ppo_plain":
        return PPO | COMMON | {"model": {"path": make_llama()}, "tokenizer": tokenizer}
    if name in (plain := {"grpo_plain": GRPO, "rft_plain": RFT, "reinforce_plain": REINFORCE}):
        return plain[name] | COMMON | {"model": {"path": make_llama()}, "tokenizer": tokenizer}
    raise KeyError(name)


def train(name: str, root: Path, run: str, changes: dict[str, Any], stop: str = "") -> Any:
    """Train a scenario in `root`/`run`.

    Args:
        name: the scenario.
        root: folder of the runs, with the model folder `base` in it.
        run: the run's name.
        changes: merged into the scenario's arguments.
        stop: `SIGINT@3` to signal this process in the third call of its reward or metric function.
    """
    given = scenario(name, root, run, changes)
    if stop:
        numbers, at = stop.split("@")
        key = "reward_fn" if "reward_fn" in given else "metric_fn"
        given[key] = Signalling(given[key], int(at), *(getattr(signal, number) for number in numbers.split("+")))
    return rlcore.train(given.pop("model"), **given)


def scenario(name: str, root: Path, run: str, changes: dict[str, Any]) -> dict[str, Any]:
    given = merge(arguments(name, root / "base"), {"run": {"name": run, "root": str(root)}})
    return merge(given, changes)


def count_exchanges(trainer: Any) -> list[int]:
    """Record each time the ranks exchange a bucket of gradients; a model this small has one bucket."""
    seen: list[int] = []

    def note(state, bucket):  # torch inspects the annotations and refuses strings
        seen.append(bucket.index())
        return allreduce_hook(None, bucket)

    trainer.updater.sharding.wrapped.register_comm_hook(None, note)
    return seen


def learn_from(file: Path, root: Path, run: str) -> None:
    """Update a policy on the trajectories in `file`, created if absent, and save it beside the run."""
    steady = {"optimizer": {"eps": 1e-3}}  # with which Adam does not amplify rounding errors
    given = scenario(
        "ppo_plain", root, run, {"trainer": {"rollouts": 11, "batch_size": 5, "micro_batch_size": 2, **steady}}
    )
    model = given.pop("model")
    settings = {key: given[key] for key in ("trainer", "gen", "run", "loggers")} | {"model": model}
    inputs = Inputs(
        model=model["path"], tokenizer=given["tokenizer"], prompts=given["prompts"], reward_fn=given["reward_fn"]
    )
    parts = assemble(structure(TrainConfig, settings), inputs, "test")
    trainer, run_ = parts.trainer, parts.run
    if not file.exists():
        trainer.rollout()
        batch = trainer.store.take()
        arrays = {"tokens": batch.tokens, "mask": batch.mask, "action_mask": batch.action_mask, "ended": batch.ended}
        save_state(file, {**arrays, "columns": batch.columns})
    exchanges = count_exchanges(trainer) if run_.ranks.world > 1 else []
    trainer.update(run_.deal(Trajectories(**load_state(file))).own)
    if run_.ranks.is_main:
        (root / f"{run}-exchanges.json").write_text(json.dumps([len(exchanges), trainer.updater.num_updates]))
        trainer.policy().save_pretrained(root / f"{run}-learned")
    run_.ranks.wait()
