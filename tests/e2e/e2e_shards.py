"""Trainings with divided weights: e2e_shards.py NAME,NAME,... ROOT RUN CHANGES_AS_JSON; each runs in RUN-NAME.

With `hold` as NAME, each rank writes what it keeps to ROOT/held-RANK.json instead; with `stream`, they write files
together.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from e2e_scenarios import COMMON, GRPO, PPO, ROUNDS, SFT, WORDS, count_a
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.optimization import Adafactor

import rlcore
from rlcore.checkpoints.state import divided_tensors, save_state
from rlcore.config import merge, structure
from rlcore.errors import RLCoreError
from rlcore.settings import RunConfig, TrainConfig
from rlcore.sharding import SavedTensor, build_none, saved_parts, streaming
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_shard.parallel_files import write_parts
from rlcore_testing.small import EOS, PAD, VOCABULARY, make_llama, make_t5, make_tokenizer

# With a large eps AdamW does not enlarge rounding errors of small gradients.
STEADY = {"optimizer": {"lr": 3e-3, "eps": 1e-2}}
PAIRS = [{"prompt": word[:1], "chosen": word[1:], "rejected": word[::-1]} for word in WORDS]
LORA = {"type": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}


def offline(name: str, **options: Any) -> dict[str, Any]:
    return {
        "samples": PAIRS,
        "eval_samples": PAIRS[:4],
        "trainer": {"name": name, "batch_size": 5, "micro_batch_size": 2, **options},
    }


ILQL = {
    "samples": SFT["samples"], "rewards": [len(word) / 4 for word in WORDS], "eval_prompts": ["a", "bc", "def"],
    "trainer": {"name": "ilql", "batch_size": 5, "micro_batch_size": 3},
}  # fmt: skip
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sft": (SFT, {}),
    "ppo": (PPO, {}),
    "ilql": (ILQL, {}),
    "dpo": (offline("dpo"), {}),
    "reward": (offline("reward"), {}),
    "grpo": (GRPO, {}),
    "climb": (ROUNDS | {"reward_fn": count_a, "trainer": {"name": "climb"}}, {}),
    "sft_checkpointing": (SFT, {"gradient_checkpointing": True}),
    "sft_lora": (SFT, {"peft": LORA}),
    "ppo_lora": (PPO, {"peft": LORA}),
    "ppo_trunk": (PPO, {"unfrozen_layers": 1}),
    "ppo_critic": (PPO, {"critic": "copy"}),
    "ppo_branch": (PPO, {"value_layers": 1}),
    "ppo_low": (PPO, {"sampling_dtype": "bfloat16"}),
    "ppo_skip": (merge(PPO, {"trainer": {"max_ratio": 1.005}}), {}),
    "grpo_moving": (merge(GRPO, {"trainer": {"sync_ref_every": 1, "sync_ref_alpha": 0.5}}), {}),
    "sft_tied": (SFT, {}),
    "sft_qwen3": (SFT, {}),
    "sft_t5": (SFT, {}),
    "ppo_t5": (PPO, {}),
}


def few(data: dict[str, Any], **trainer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return merge(data, {"trainer": {"micro_batch_size": 0, "micro_batch_tokens": 9, **trainer}}), {}


RUNS |= {
    "few_ppo": few(PPO, rollouts=3, batch_size=1, epochs=1),
    "few_grpo": few(GRPO, rollouts=9, iterations=1, minibatches=3),
    "few_dpo": few(offline("dpo"), batch_size=1),
    "few_reward": few(offline("reward"), batch_size=1),
}
"""Three ranks have fewer rows in a minibatch than there are ranks, and passes of other lengths."""
"""Name → the data and trainer, and the options of the model."""

SFT_SETTINGS = {"trainer": SFT["trainer"], "loggers": []}


def make_qwen3() -> Qwen3ForCausalLM:
    """Return a Qwen3 with biases; its norms of queries and keys run on the heads of a process."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, vocab_size=VOCABULARY, max_position_embeddings=64, bos_token_id=EOS, eos_token_id=EOS,
            pad_token_id=PAD, initializer_range=0.3, tie_word_embeddings=False, attention_bias=True,
        )
    ).eval()  # fmt: skip


def train(name: str, root: Path, run: str, changes: dict[str, Any]) -> Any:
    """Train the run `name` in `root`/`run`-`name`."""
    make = make_t5 if name.endswith("t5") else make_qwen3 if name.endswith("qwen3") else make_llama
    model: Any = make()
    if name.endswith("tied"):
        model.config.tie_word_embeddings = True
        model.tie_weights()
    data, options = RUNS[name]
    given = merge(merge(data, {"trainer": STEADY}) | COMMON, {"run": {"name": f"{run}-{name}", "root": str(root)}})
    sections = merge(given, changes) | {"model": {"path": model} | options, "tokenizer": make_tokenizer()}
    return rlcore.train(**sections)


def hold(root: Path, changes: dict[str, Any]) -> None:
    """Write what this rank keeps after a step of SFT, and the errors of parts that cannot be divided."""
    run = {"root": str(root), "name": "held", **changes["run"]}
    config = structure(TrainConfig, SFT_SETTINGS | {"run": run})
    inputs = Inputs(model=make_llama(), tokenizer=make_tokenizer(), samples=SFT["samples"])
    parts = assemble(config, inputs, "test")
    trainer: Any = parts.trainer
    next(iter(trainer.steps()))
    policy, held = trainer.policy(), {}
    if run["shard"] == "fsdp":
        held["moments_read"] = read_again(trainer.updater)
        held["written"] = write_in_parallel(root / "parts", policy, parts.run.ranks.world)
    moments = trainer.updater.optimizer.state.values()
    held |= {
        "parts": sum(part.numel() for _, part in policy.parts()),
        "moments": sum(local(state["exp_avg"]).numel() for state in moments),
        "whole": sum(weight.numel() for weight in policy.module.parameters()),
        "streamed": sum(weight.numel() for _, weight in policy.weights()),
        "refusals": [refusal(lambda: trainer.updater.sharding.cut(trainer)),
                     refusal(lambda: build_none(RunConfig(offload=True), parts.run.ranks)),
                     refusal(lambda: trainer.updater.sharding.drive(Adafactor([torch.zeros(2)])))],
    }  # fmt: skip
    (root / f"held-{parts.run.ranks.rank}.json").write_text(json.dumps(held))
    parts.run.ranks.wait()


def write_in_parallel(folder: Path, policy: Any, world: int) -> bool:
    """Write the weights, and return whether any rows that are read are those written."""
    divided = policy.divided_weights()
    write_parts(folder, divided, world=world)
    saved, equal = saved_parts(folder), []
    for name, part in divided.items():
        whole = part.full_tensor()
        third = -(-len(whole) // 3)
        rows = [slice(0, third), slice(third, 2 * third), slice(2 * third, len(whole)), slice(0, 0), ...]
        equal += [torch.equal(saved[name][each], whole[each]) for each in rows]
    return all(equal) and saved.keys() == divided.keys()


def kill_at(place: str) -> None:
    """Kill this process when it opens a file whose path contains `place`."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and place in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def read_again(updater: Any) -> int:
    """Restore the optimizer from whole tensors of which rows are read, and return the number of elements read."""
    state, read = updater.state_dict(), []

    def saved(part: DTensor) -> SavedTensor:
        whole = part.full_tensor()

        def rows(index: Any) -> torch.Tensor:
            read.append(whole[index].clone())
            return read[-1]

        return SavedTensor(whole.shape, whole.dtype, rows)

    for kept in state["optimizer"]["state"].values():
        kept.update({name: saved(each) for name, each in kept.items() if isinstance(each, DTensor)})
    updater.load_state_dict(state)
    return sum(each.numel() for each in read)


def stream(root: Path) -> None:
    """Write weights, checkpoint and export of runs after a step; what rank 0 then has of the module is its heads."""
    for name, (data, options) in {"ppo": RUNS["ppo"], "lora": RUNS["ppo_lora"]}.items():
        settings = {"trainer": data["trainer"], "loggers": [], "model": options, "gen": {"max_new_tokens": 3}}
        config = structure(
            TrainConfig, merge(settings, {"run": {"root": str(root), "name": f"run-{name}", "shard": "fsdp"}})
        )
        inputs = Inputs(
            model=make_llama(), tokenizer=make_tokenizer(), prompts=data["prompts"], reward_fn=data["reward_fn"]
        )
        parts = assemble(config, inputs, "test")
        trainer: Any = parts.trainer
        next(iter(trainer.steps()))
        policy, ranks = trainer.policy(), parts.run.ranks
        weights = {each: value.cpu().clone() for each, value in policy.weights()}
        if ranks.is_main:
            save_file(weights, root / f"{name}-weights.safetensors")
        state = trainer.state_dict()
        with streaming(policy, divided_tensors(state), here=ranks.is_main) as whole:
            write = functools.partial(write_all, root / name, policy, state, whole)
            ranks.on_main(functools.partial(whole.finishing, write))
        with streaming(policy, here=ranks.is_main, merged=True) as whole:
            export = functools.partial(policy.export, root / f"{name}-export")
            ranks.on_main(functools.partial(whole.finishing, export))


def write_all(folder: Path, policy: Any, state: dict[str, Any], whole: Any) -> None:
    policy.save_pretrained(folder)
    save_state(folder / "state", state, whole=whole.take)
    held = sum(weight.numel() for weight in policy.model.parameters())
    (folder / "held.json").write_text(json.dumps(held))


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except RLCoreError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    names, root, run, changes = sys.argv[1:]
    # In this mode, torch fills new memory with NaN where it leaves it as it is otherwise.
    torch.use_deterministic_algorithms("UNSET_IS_NAN" in os.environ, warn_only=True)
    if os.environ.get("KILLED") and os.environ["RANK"] == "1":
        kill_at(os.environ["KILLED"])
    if names == "hold":
        hold(Path(root), json.loads(changes))
        sys.exit()
    if names == "stream":
        stream(Path(root))
        sys.exit()
    for each in names.split(","):
        train(each, Path(root), run, json.loads(changes))
