"""TRL's GRPO, and its RLOO as the closest equivalent of PPO, which TRL does not have; prints one line of JSON.

A round has the same number of completions as in train_ppo.py, trained on for four epochs in eight optimizer steps, of
two equal halves per epoch (there 100 and 40 for PPO). RLOO has no value function and no per-token advantages, so it
does less work than PPO; GRPO does the same work as `train_ppo.py --trainer grpo`. The KL coefficient is 0, so no
reference model is loaded. Runs in an environment that has TRL and does not need rlcore.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, GPT2LMHeadModel
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the environment of TRL need not have this repository
sys.path.append(str(Path(__file__).resolve().parents[1] / "plugins"))

from benchmarks.figures import Clock, above_imports, after_imports, report
from benchmarks.tasks import load_task

EPOCHS, HALVES = 4, 2
TRAINERS = {"rloo": (RLOOConfig, RLOOTrainer), "grpo": (GRPOConfig, GRPOTrainer)}


def main() -> None:
    """Parse the command line, train, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the starting model is")
    parser.add_argument("--task", default="walks", choices=["walks", "reviews"])
    parser.add_argument("--data", type=Path, help="folder of the reviews")
    parser.add_argument("--trainer", default="rloo", choices=list(TRAINERS))
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    imports = after_imports()
    task, clock = load_task(options.task, options.data), Clock()
    scores: list[float] = []

    def reward_fn(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        clock.mark()
        rewards = [task.score(prompt + completion) for prompt, completion in zip(prompts, completions, strict=True)]
        scores.append(sum(rewards) / len(rewards))
        return rewards

    with TemporaryDirectory() as folder:
        config_class, trainer_class = TRAINERS[options.trainer]
        config = config_class(
            output_dir=folder,
            per_device_train_batch_size=task.rollouts // HALVES,
            steps_per_generation=HALVES,
            num_iterations=EPOCHS,
            num_generations=task.samples,
            max_completion_length=task.max_new_tokens,
            max_steps=EPOCHS * HALVES * (options.iterations + 1),
            beta=0.0,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=1e-6,
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            seed=options.seed,
        )
        trainer = trainer_class(
            model=GPT2LMHeadModel.from_pretrained(options.folder, dtype=torch.float32),
            reward_funcs=reward_fn,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": task.prompts}),
            processing_class=AutoTokenizer.from_pretrained(options.folder, padding_side="left"),
        )
        trainer.train()
    print(json.dumps(above_imports(report(scores[:-1], clock), imports)))


if __name__ == "__main__":
    main()
