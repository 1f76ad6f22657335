"""Train a Llama of 50 million parameters in several processes of this machine; prints one line of JSON.

`train_shards.py STRATEGY --world 2` starts the processes with torchrun, one thread each. Each rank has its own rows;
every step has one micro-batch of 8 rows of 128 tokens for each rank. The first step is left out. Wall seconds are those
of rank 0, CPU seconds are summed over ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rlcore
from benchmarks.figures import usage
from benchmarks.train_sft import StepMarks
from rlcore.plugins.registry import registries
from rlcore_testing.small import LETTERS, make_tokenizer

LENGTH, ROWS = 128, 8


def main() -> None:
    """Parse the command line; start the processes, or train as one of them."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("strategy", help="run.shard")
    arguments.add_argument("--world", type=int, default=2, help="number of processes")
    arguments.add_argument("--steps", type=int, default=8)
    arguments.add_argument("--trainer", choices=["sft", "ppo"], default="sft")
    arguments.add_argument("--bf16", action="store_true", help="run.mixed_precision=bf16")
    arguments.add_argument("--figures", type=Path, help="of the ranks that this program starts; not to be given")
    options = arguments.parse_args()
    if options.figures is not None:
        train(options)
        return
    with TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.world)]
        given = [*sys.argv[1:], "--figures", folder]
        subprocess.run(
            [*(launch if options.world > 1 else [sys.executable]), __file__, *given], check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        ranks = [json.loads(Path(folder, str(rank)).read_text("utf-8")) for rank in range(options.world)]
    print(json.dumps(ranks[0] | {"cpu_s_per_step": round(sum(rank["cpu_s_per_step"] for rank in ranks), 4)}))


def train(options: argparse.Namespace) -> None:
    """Train as one rank, and write its figures."""
    torch.set_num_threads(1)
    marks = StepMarks()
    registries().discovery.hooks.register(marks, name="marks")
    with TemporaryDirectory() as root:
        result = rlcore.train(
            make_model(),
            tokenizer=make_tokenizer(),
            **work(options.trainer, options.world),
            gen={"max_new_tokens": LENGTH // 2, "min_new_tokens": LENGTH // 2},
            eval={"at_end": False},
            checkpoint={"at_end": False},
            run={
                "steps": options.steps, "root": root, "name": "benchmark", "shard": options.strategy,
                "mixed_precision": "bf16" if options.bf16 else "no",
            },
            loggers=[],
        )  # fmt: skip
    steps = [[after - before for before, after in pairwise(times)] for times in (marks.wall, marks.cpu)]
    figures = {
        "s_per_step": round(median(steps[0]), 4), "s_per_quick_step": round(min(steps[0]), 4),
        "cpu_s_per_step": round(sum(steps[1]) / len(steps[1]), 4), "loss": round(result.metrics["loss/total"], 4),
        **usage(),
    }  # fmt: skip
    Path(options.figures, os.environ.get("RANK", "0")).write_text(json.dumps(figures), "utf-8")


def make_model() -> LlamaForCausalLM:
    """Return a Llama of 12 layers and 49 million parameters with random weights."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=12, hidden_size=512, intermediate_size=1408, num_attention_heads=8, vocab_size=10_000,
            max_position_embeddings=LENGTH, bos_token_id=30, eos_token_id=30, pad_token_id=31,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


def work(trainer: str, world: int) -> dict[str, Any]:
    """Return the data and the trainer's options; rows are as many for each rank as for one process."""
    texts = [(LETTERS[i % 26] + LETTERS[:26] * 5)[: LENGTH // 2] for i in range(64)]
    optimizer = {"lr": 1e-5}
    if trainer == "sft":
        options = {"name": "sft", "batch_size": ROWS * world, "optimizer": optimizer}
        return {"samples": [[text, text[: LENGTH // 2 - 1]] for text in texts], "trainer": options}
    options = {"name": "ppo", "rollouts": ROWS * world, "batch_size": ROWS * world, "epochs": 2, "optimizer": optimizer}
    return {"prompts": texts, "reward_fn": lambda outputs: [float(len(each)) for each in outputs], "trainer": options}


if __name__ == "__main__":
    main()
