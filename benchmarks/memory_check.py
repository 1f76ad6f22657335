"""Compare the memory that `rlcore plan` predicts with the memory that processes use.

    python -m benchmarks.memory_check [--quick] [NAME ...]

Each case is planned and trains for two steps, each in its own process, once with glibc's default malloc and once with a
fixed threshold, with which freed memory is returned. Peaks are `perf/peak_memory_gb`; ratios are plan ÷ measured, of
the whole process and of the part above the plan's baseline. `in_use` is a plan without memory that malloc retains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GPT = {"model_type": "gpt2", "n_embd": 384, "n_layer": 6, "n_head": 6, "vocab_size": 20_000, "n_positions": 512}
WORDY = {**GPT, "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 50_257}
LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8_000, "max_position_embeddings": 512,
}  # fmt: skip
PPO = {"name": "ppo", "rollouts": 16, "batch_size": 16, "epochs": 1}
TEXTS = [f"w{i} w2 w3 w4 w5 w6 w7 w8 w9 w10" for i in range(16)]
SAMPLES = [[text, " ".join(f"w{j}" for j in range(53))] for text in TEXTS]
GEN = {"max_new_tokens": 54, "eos_token_ids": []}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ppo gpt": (GPT, {"trainer": {**PPO, "micro_batch_size": 8, "kl_coef": 0.1}, "gen": GEN}),
    "ppo gpt unfrozen 2": (GPT, {"trainer": {**PPO, "kl_coef": 0.1}, "model": {"unfrozen_layers": 2}, "gen": GEN}),
    "ppo llama": (LLAMA, {"trainer": {**PPO, "micro_batch_size": 8, "kl_coef": 0.1}, "gen": GEN}),
    "ppo llama recomputed": (
        LLAMA,
        {"trainer": {**PPO, "kl_coef": 0}, "model": {"gradient_checkpointing": True}, "gen": GEN},
    ),
    "ppo gpt evaluated": (GPT, {"trainer": PPO, "gen": GEN, "eval": {"samples": 16, "batch_size": 256}}),
    "sft 50k": (WORDY, {"trainer": {"name": "sft", "batch_size": 16}}),
    "sft llama micro 4": (LLAMA, {"trainer": {"name": "sft", "batch_size": 16, "micro_batch_size": 4}}),
    "sft gpt adafactor": (
        GPT,
        {"trainer": {"name": "sft", "batch_size": 8, "optimizer": {"name": "adafactor", "betas": None}}},
    ),
    "sft llama adafactor": (
        LLAMA,
        {"trainer": {"name": "sft", "batch_size": 4, "optimizer": {"name": "adafactor", "betas": None}}},
    ),
    "sft gpt": (GPT, {"trainer": {"name": "sft", "batch_size": 8}}),
    "sft llama recomputed": (
        LLAMA,
        {"trainer": {"name": "sft", "batch_size": 16}, "model": {"gradient_checkpointing": True}},
    ),
    "sft llama lora": (
        LLAMA,
        {"trainer": {"name": "sft", "batch_size": 16}, "model": {"peft": {"type": "lora", "r": 8}}},
    ),
    "rft llama": (
        LLAMA,
        {
            "trainer": {"name": "rft", "generations": 8, "prompts": 8, "batch_size": 16, "improve_steps": 1},
            "gen": GEN,
        },
    ),
    "ilql llama micro 2": (LLAMA, {"trainer": {"name": "ilql", "batch_size": 8, "micro_batch_size": 2}}),
    "ilql gpt": (GPT, {"trainer": {"name": "ilql", "batch_size": 8}}),
}
QUICK = ("ppo gpt", "sft llama micro 4")
TRAIN = """
import json, sys
from rlcore.training.api import train_from_config
print(train_from_config(json.load(open(sys.argv[1])), "memory_check").metrics["perf/peak_memory_gb"])
"""


def reward(outputs: list[str], **_: Any) -> list[float]:
    """Return an arbitrary score for each response."""
    return [float(len(output) % 7) for output in outputs]


def make_model(folder: Path, config: dict[str, Any]) -> None:
    """Save a model with random weights and a tokenizer with the words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    kind, last = config["model_type"], config["vocab_size"] - 1
    shape = {name: value for name, value in config.items() if name != "model_type"}
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **shape, bos_token_id=last, eos_token_id=last)
    ).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(last)} | {"</s>": last}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>").save_pretrained(folder)


def check(folder: Path, name: str) -> dict[str, float]:
    """Return the planned and the measured memory of one case, in MB, and their ratios."""
    config, options = CASES[name]
    model = folder / name.replace(" ", "-")
    make_model(model, config)
    data: dict[str, Any] = {"samples": SAMPLES}
    if options["trainer"]["name"] in ("ppo", "rft"):
        data = {"prompts": TEXTS, "reward_fn": "memory_check:reward"}
    if "eval" in options:
        data["eval_prompts"] = TEXTS
    if options["trainer"]["name"] == "ilql":
        data["rewards"] = [float(i % 7) for i in range(len(SAMPLES))]
    values = {
        **options, "model": {"path": str(model), **options.get("model", {})}, "data": data, "loggers": [],
        "run": {"steps": 2, "name": model.name, "root": str(folder / "runs"), "overwrite": True},
        "checkpoint": {"at_end": False},
    }  # fmt: skip
    file = folder / f"{model.name}.yaml"
    file.write_text(json.dumps(values))
    row: dict[str, float] = {}
    for how, environment in {"usual": {}, "fixed": FIXED}.items():
        plan = json.loads(_said("-m", "rlcore", "plan", str(file), "--json", **environment))
        held = 1e9 * float(_said("-c", TRAIN, str(file), **environment).splitlines()[-1])
        peak, baseline = plan["peak"], plan["baseline"]
        row |= {
            f"planned_{how}_mb": peak / 1e6, f"{how}_mb": held / 1e6, f"planned_to_{how}": peak / held,
            f"in_use_to_{how}": (peak - plan["kept_by_malloc"]) / held,
            f"above_{how}": (peak - baseline) / (held - baseline),
        }  # fmt: skip
    return row


FIXED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}


def _said(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=Path(__file__).parent, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return done.stdout


def main() -> None:
    """Print a line of JSON for each case, and a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or (QUICK if arguments.quick else CASES):
            rows[name] = check(Path(folder), name)
            print(json.dumps({"case": name, **{key: round(value, 3) for key, value in rows[name].items()}}), flush=True)
    print(f"{'case':<24}{'malloc':>8}{'planned':>9}{'held':>9}   plan/held in use/held above the baseline")
    for name, row in rows.items():
        for how in ("usual", "fixed"):
            print(
                f"{name:<24}{how:>8}{row[f'planned_{how}_mb']:>9.0f}{row[f'{how}_mb']:>9.0f}"
                f"{row[f'planned_to_{how}']:>12.3f}{row[f'in_use_to_{how}']:>12.3f}{row[f'above_{how}']:>19.3f}"
            )


if __name__ == "__main__":
    main()
