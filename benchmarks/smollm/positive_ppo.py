"""Write positive film reviews by PPO with a reward model that was trained on labelled reviews.

The reward model is the chat model with a score head, trained by `reward` on pairs of a favourable and an unfavourable
review. PPO then trains the chat model to continue the first words of reviews with 24 tokens. The held-out measure is
the share of continuations of 64 held-out prompts that VADER finds positive; nothing is trained on VADER.
"""

from __future__ import annotations

from chat import evaluations
from reviews import prompts_from, texts

from benchmarks.smollm.film_reviews import HELD_OUT, positive, share_positive, split
from benchmarks.smollm.runner import Task


def main() -> None:
    """Train the reward model and the writer, and report the share of positive reviews."""
    task = Task("positive_ppo", __doc__)
    train, held_out, prompts = split(task)
    pairs, others = (
        [
            {"chosen": good, "rejected": bad}
            for good, bad in zip(*(texts([r for r in part if r["label"] == label]) for label in (1, 0)), strict=False)
        ]
        for part in (train, held_out)
    )
    judge = task.train(
        "positive_reward", samples=pairs, eval_samples=others[:HELD_OUT], curve=("loss/total", "eval/reward/accuracy"),
    )  # fmt: skip
    result = task.train(
        "positive_ppo",
        prompts=prompts_from(train),
        eval_prompts=prompts,
        reward_fn={"fn": "reward_model", "path": str(judge.run_dir / "model"), "dtype": "bfloat16"},
        metric_fn=positive,
        curve=("reward/mean", "kl/mean", "policy/approx_kl", "eval/reward/mean", "eval/positive"),
    )
    before, after = evaluations(result.run_dir)
    task.report("held-out reviews that VADER finds positive", HELD_OUT, share_positive(before), share_positive(after))
    console = task.console
    console.print(f"reward model: {judge.metrics['eval/reward/accuracy']:.3f} of {HELD_OUT} held-out pairs")
    console.print(f"KL from the chat model in the last round: {task.last('kl/mean'):.1f} nats per review")


if __name__ == "__main__":
    main()
