"""Distil the model of gsm8k_sft.py into one of 7 of its 30 layers; the held-out measure is the loss on test problems.

The student begins with seven evenly spaced layers of the teacher, with its embeddings and its head, and all its weights
are trained on the teacher's distributions over the answers of GSM8K. Run it after gsm8k_sft.py, whose problems and
measure it shares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.smollm.gsm8k_sft import HELD_OUT, conversations, losses
from benchmarks.smollm.runner import Task, interval_of_mean

LAYERS = 7


def main() -> None:
    """Make and train the student, and report its loss before and after."""
    task = Task("distillation", __doc__)
    samples, held_out = (conversations(task.read(f"gsm8k_{part}.jsonl")) for part in ("train", "test"))
    teacher = task.options.out / f"smollm-gsm8k_sft-{task.options.seed}" / "model"
    if not teacher.exists():
        raise SystemExit(f"distillation is skipped: {teacher} does not exist; gsm8k_sft.py writes it")
    student = make_student(teacher, task.options.out / "smollm-student")
    held_out = held_out[:HELD_OUT]
    result = task.train(
        "distillation", student, trainer={"teacher": str(teacher)}, samples=samples, curve=("loss/total",),
    )  # fmt: skip
    before, after = (interval_of_mean(losses(each, held_out)) for each in (student, result.run_dir / "model"))
    task.report("student's loss of held-out answers, nats", HELD_OUT, before, after)


def make_student(teacher: Path, folder: Path) -> Path:
    """Save the student that a teacher begins with, and its tokenizer."""
    shortened(AutoModelForCausalLM.from_pretrained(teacher)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(teacher).save_pretrained(folder)
    return folder


def shortened(network: Any) -> Any:
    """Keep evenly spaced layers of a Llama, from the first to the last; the network is changed in place."""
    layers = network.model.layers
    kept = [layers[round(i * (len(layers) - 1) / (LAYERS - 1))] for i in range(LAYERS)]
    for i, layer in enumerate(kept):
        layer.self_attn.layer_idx = i
    network.model.layers, network.config.num_hidden_layers = torch.nn.ModuleList(kept), LAYERS
    return network


if __name__ == "__main__":
    main()
