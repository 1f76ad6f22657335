"""Print the losses of TRL's trainers at the first two steps of every comparison in loss_task.py, as JSON.

Runs in an environment that has TRL (`make bench-peers`) and does not need rlcore; trl_losses.json is its output:

    cd benchmarks; ../../../.venv-peers/bin/python trl_losses.py > trl_losses.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the environment of TRL need not have this repository
sys.path.append(str(Path(__file__).resolve().parents[1] / "plugins"))

from benchmarks import loss_task


def losses(case: str, folder: Path) -> list[float]:
    """Return the loss of each step."""
    rows, is_scorer = loss_task.CASES[case], case == "reward model"
    loss_task.write_model(folder, is_scorer=is_scorer)
    settings: dict[str, Any] = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": len(rows), "max_steps": loss_task.STEPS,
        "learning_rate": loss_task.LR, "lr_scheduler_type": "constant", "weight_decay": 0.0,
        "max_grad_norm": loss_task.MAX_GRAD_NORM, "optim": "adamw_torch", "bf16": False, "use_cpu": True,
        "gradient_checkpointing": False, "save_strategy": "no", "logging_steps": 1, "report_to": "none",
        "disable_tqdm": True,
    }  # fmt: skip
    given: dict[str, Any] = {
        "train_dataset": Dataset.from_list(rows),
        "processing_class": AutoTokenizer.from_pretrained(folder),
    }
    if case == "sft on conversations":
        settings["assistant_only_loss"] = True
        given["processing_class"].chat_template = loss_task.chat_template(is_marked=True)
    kind = AutoModelForSequenceClassification if is_scorer else AutoModelForCausalLM
    given["model"] = kind.from_pretrained(folder)
    if case.startswith("sft"):
        trainer: Any = SFTTrainer(args=SFTConfig(**settings), **given)
    elif case == "reward model":
        trainer = RewardTrainer(args=RewardConfig(**settings), **given)
    else:
        given["ref_model"] = kind.from_pretrained(folder)
        if case == "kto":
            trainer = KTOTrainer(args=KTOConfig(**settings, beta=loss_task.BETA), **given)
        else:
            loss = "sigmoid" if case == "dpo" else case
            trainer = DPOTrainer(args=DPOConfig(**settings, beta=loss_task.BETA, loss_type=loss), **given)
    unrounded: list[float] = []
    step = trainer.training_step

    def recording_step(*given: Any, **more: Any) -> Any:
        unrounded.append(float(loss := step(*given, **more)))
        return loss

    trainer.training_step = recording_step
    trainer.train()
    return unrounded


def main() -> None:
    """Train every comparison, and print."""
    logging.set_verbosity_error()
    found = {}
    for case in loss_task.CASES:
        with TemporaryDirectory() as folder:
            found[case] = losses(case, Path(folder))
    print(json.dumps({"trl": trl.__version__, "losses": found}, indent=2))


if __name__ == "__main__":
    main()
