"""Teach a chat model the answers of GSM8K by SFT with LoRA; the held-out measure is the loss on test problems.

The loss is the mean negative log-probability of a token of the answer in nats. It is computed for each answer by
`transformers` in float32, from the model's file and from the model that the run saved, on problems of the test set
whose question and answer have at most 200 characters each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.smollm.runner import Task, interval_of_mean, source

LONGEST, HELD_OUT = 200, 64


def main() -> None:
    """Train, and report the loss before and after."""
    task = Task("gsm8k_sft", __doc__)
    samples, held_out = (conversations(task.read(f"gsm8k_{part}.jsonl")) for part in ("train", "test"))
    held_out = held_out[:HELD_OUT]
    result = task.train("gsm8k_sft", samples=samples, eval_samples=held_out, curve=("loss/total", "eval/loss"))
    before, after = losses(task.model, held_out), losses(result.run_dir / "model", held_out)
    task.report("loss of held-out answers, nats", HELD_OUT, interval_of_mean(before), interval_of_mean(after))
    fell = interval_of_mean([old - new for old, new in zip(before, after, strict=True)])
    task.console.print("the loss of an answer fell by {:.3f} [{:.3f}, {:.3f}] nats".format(*fell), markup=False)


def conversations(problems: list[dict[str, Any]]) -> list[list[dict[str, str]]]:
    """Return the short problems as conversations."""
    short = (each for each in problems if max(len(each["question"]), len(each["answer"])) <= LONGEST)
    return [
        [{"role": "user", "content": each["question"]}, {"role": "assistant", "content": each["answer"]}]
        for each in short
    ]


def losses(model: Path, held_out: list[list[dict[str, str]]]) -> list[float]:
    """Return the mean loss of each answer's tokens, with the token that ends the answer."""
    folder, where = source(model)
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    network = AutoModelForCausalLM.from_pretrained(folder, **where, dtype=torch.float32).eval()
    found = []
    for messages in held_out:
        prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer = tokenizer(messages[1]["content"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = network(torch.tensor([start + answer])).logits[0, len(start) - 1 : -1]
        found.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(answer))))
    return found


if __name__ == "__main__":
    main()
