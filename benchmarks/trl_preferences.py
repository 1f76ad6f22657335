"""The workload of train_preferences.py with TRL's DPO or reward trainer; prints one line of JSON.

Activation checkpointing, which TRL switches on by default and which costs time, is off. AdamW is fused and attention is
scaled-dot-product attention; nothing is logged, saved or evaluated. Runs in an environment that has TRL and does not
need rlcore.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, GPT2ForSequenceClassification, GPT2LMHeadModel
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the environment of TRL need not have this repository
sys.path.append(str(Path(__file__).resolve().parents[1] / "plugins"))

from benchmarks.figures import above_imports, after_imports
from benchmarks.preference_work import BATCH_SIZE, BETA, LR, MAX_GRAD_NORM, PASSES, parser
from benchmarks.texts import read_preferences
from benchmarks.transformers_sft import CallbackMarks


def main() -> None:
    """Parse the command line, train, and print."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)  # of the score head
    imports, marks = after_imports(), CallbackMarks()
    rows = Dataset.from_list(read_preferences(options.data, BATCH_SIZE * options.steps))
    with TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": BATCH_SIZE,
            "num_train_epochs": PASSES,
            "learning_rate": LR[options.trainer],
            "lr_scheduler_type": "constant",
            "weight_decay": 0.0,
            "max_grad_norm": MAX_GRAD_NORM,
            "optim": "adamw_torch_fused",
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        given: dict[str, Any] = {
            "train_dataset": rows,
            "processing_class": AutoTokenizer.from_pretrained(options.model),
            "callbacks": [marks],
        }
        if options.trainer == "dpo":
            config = DPOConfig(**settings, beta=BETA, precompute_ref_log_probs=options.precompute)
            model = GPT2LMHeadModel.from_pretrained(options.model, dtype=torch.float32)
            trainer = DPOTrainer(model=model, args=config, **given)
            columns = ["prompt_ids", "prompt_ids", "chosen_ids", "rejected_ids"]
        else:
            scorer = GPT2ForSequenceClassification.from_pretrained(options.model, dtype=torch.float32, num_labels=1)
            trainer = RewardTrainer(model=scorer, args=RewardConfig(**settings), **given)
            columns = ["chosen_ids", "rejected_ids"]
        tokens = sum(len(row[column]) for row in trainer.train_dataset for column in columns)
        loss = trainer.train().training_loss
    print(json.dumps(above_imports(marks.report(tokens=tokens, loss=loss), imports)))


if __name__ == "__main__":
    main()
