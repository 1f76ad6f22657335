"""Teach a chat model the form of GSM8K's answers, not their content: a short SFT, then GRPO with a rule.

The rule of docs/examples/gsm8k_format.py gives 1 to an answer whose lines each contain a calculation, `<<48/2=24>>`,
except the last, which is `#### 72`. The chat model never writes this form, so GRPO begins after a few steps of SFT,
which finds it sometimes. The held-out measure is the share of 64 test problems whose answer has the form, after SFT and
after GRPO.
"""

from __future__ import annotations

from chat import evaluations, interval
from gsm8k_format import formed

from benchmarks.smollm.gsm8k_sft import HELD_OUT, conversations
from benchmarks.smollm.runner import Task


def main() -> None:
    """Imitate, learn from the rule, and report the form before and after GRPO."""
    task = Task("gsm8k_form", __doc__)
    samples, held_out = (conversations(task.read(f"gsm8k_{part}.jsonl")) for part in ("train", "test"))
    sft = task.train("gsm8k_form_sft", samples=samples, curve=("loss/total",))
    result = task.train(
        "gsm8k_form",
        sft.run_dir / "model",
        prompts=[messages[:1] for messages in samples],
        eval_prompts=[messages[:1] for messages in held_out[:HELD_OUT]],
        reward_fn=formed,
        curve=("reward/mean", "kl/mean", "group/zero_spread_fraction", "eval/reward/mean"),
    )
    before, after = (interval(sum(row["reward"] for row in rows), len(rows)) for rows in evaluations(result.run_dir))
    task.report("answers of the form, after SFT and after GRPO", HELD_OUT, before, after)


if __name__ == "__main__":
    main()
