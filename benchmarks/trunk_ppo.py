"""PPO with the lower layers of a GPT-2 frozen, which rlcore runs once per round and sequence, or in every pass.

    python trunk_ppo.py make FOLDER LAYERS WIDTH                        a GPT-2 with random weights and 5,000 words
    python trunk_ppo.py run FOLDER [--again] [--unfrozen 2] [--iterations 4] [--kl-coef 0.05] [--walks]

`--again` runs frozen layers in every pass. A round is 32 prompts of 32 words with 32 sampled words each, trained on in
4 epochs of 2 minibatches; with `--walks` the folder contains the model of random walks, and the round is that of
train_ppo.py. The output is one line of JSON, in seconds per iteration: total, scoring and learning.
"""

from __future__ import annotations

import argparse
import json
import random
from tempfile import TemporaryDirectory
from typing import Any

import torch

import rlcore
from benchmarks.example import RandomWalks
from benchmarks.figures import Clock, report, usage

NUM_WORDS = 5000
PPO = {"name": "ppo", "epochs": 4, "target_kl": None, "value_coef": 0.1, "optimizer": {"lr": 1e-4}}
ROUNDS = {True: {"rollouts": 140, "batch_size": 100}, False: {"rollouts": 32, "batch_size": 16}}


def make(folder: str, layers: int, width: int) -> None:
    """Save a model with random weights, and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(NUM_WORDS)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w1", pad_token="w1")
    config = GPT2Config(
        vocab_size=NUM_WORDS, n_positions=64, n_embd=width, n_layer=layers, n_head=width // 32,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run PPO and return the same report as train_ppo.py."""
    clock, task, words = Clock(), RandomWalks(1000), random.Random(0)
    scores: list[float] = []

    def reward_fn(samples: list[str], outputs: list[str]) -> list[float]:
        clock.mark()
        rewards = [task.optimality(walk) for walk in samples] if options.walks else [float(len(o)) for o in outputs]
        scores.append(sum(rewards) / len(rewards))
        return rewards

    sentences = [" ".join(f"w{words.randrange(NUM_WORDS)}" for _ in range(32)) for _ in range(256)]
    with TemporaryDirectory() as root:
        result = rlcore.train(
            {
                "path": options.folder,
                "unfrozen_layers": options.unfrozen,
                **({"trunk_cache_gb": 0.0} if options.again else {}),
            },
            trainer={**PPO, **ROUNDS[options.walks], "kl_coef": options.kl_coef},
            reward_fn=reward_fn,
            prompts=task.starts * 7 if options.walks else sentences,
            gen={"max_new_tokens": 9} if options.walks else {"max_new_tokens": 32, "eos_token_ids": []},
            eval={"at_end": False},
            checkpoint={"at_end": False},
            run={"steps": options.iterations + 1, "root": root, "name": "benchmark"},
        )
        rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    phases = {name: sum(row[f"time/{name}"] for row in rows[1:]) / len(rows[1:]) for name in ("score_s", "update_s")}
    figures = report(scores[:-1], clock)
    return {name: figures[name] for name in ("s_per_iteration", "cpu_s_per_iteration")} | phases | usage()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_subparsers(dest="work", required=True)
    making = work.add_parser("make")
    making.add_argument("folder")
    making.add_argument("layers", type=int)
    making.add_argument("width", type=int)
    running = work.add_parser("run")
    running.add_argument("folder")
    running.add_argument("--again", action="store_true", help="run frozen layers in every pass")
    running.add_argument("--walks", action="store_true", help="random walks, not sentences")
    running.add_argument("--unfrozen", type=int, default=2)
    running.add_argument("--iterations", type=int, default=4)
    running.add_argument("--kl-coef", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.work == "make":
        make(options.folder, options.layers, options.width)
    else:
        print(json.dumps(train(options)))


if __name__ == "__main__":
    main()
