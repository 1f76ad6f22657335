"""Write favourable film reviews by PPO with a reward model that was trained on labelled reviews.

The labelled reviews are divided in two halves. On the first, SFT teaches the chat model to write reviews, and `reward`
trains a reward model on pairs of a favourable and an unfavourable review. PPO then trains the SFT model to continue the
first words of reviews with 24 tokens; the KL penalty holds it near the SFT model. The second half trains a classifier
of words (docs/examples/reviews.py), and only the measure uses it: the share of continuations of 64 held-out prompts
that it finds favourable. VADER's share and the reward model's mean score are in the curve too.
"""

from __future__ import annotations

from chat import evaluations, written
from reviews import Review, prompts_from, texts

from benchmarks.smollm.film_reviews import HELD_OUT, judges, share, split
from benchmarks.smollm.runner import Task


def main() -> None:
    """Train the SFT model, the reward model and the writer, and report the share of favourable reviews."""
    task = Task("positive_ppo", __doc__)
    train, held_out, prompts = split(task)
    own, others = train[: len(train) // 2], train[len(train) // 2 :]
    metric_fn = judges(task, others, held_out)
    sft = task.train("positive_sft", samples=texts(own), curve=("loss/total",))
    judge = task.train(
        "positive_reward",
        samples=pairs(own),
        eval_samples=pairs(held_out)[:HELD_OUT],
        curve=("loss/total", "eval/reward/accuracy"),
    )
    result = task.train(
        "positive_ppo",
        sft.run_dir / "model",
        prompts=prompts_from(own),
        eval_prompts=prompts,
        reward_fn={"fn": "reward_model", "path": str(judge.run_dir / "model"), "dtype": "bfloat16"},
        metric_fn=metric_fn,
        curve=("reward/mean", "kl/mean", "policy/approx_kl", "eval/reward/mean", "eval/positive", "eval/favourable"),
    )
    before, after = evaluations(result.run_dir)
    shares = [share(rows, "favourable") for rows in (before, after)]
    task.report("held-out reviews that a classifier finds favourable", HELD_OUT, *shares)
    console = task.console
    console.print(f"reward model: {judge.metrics['eval/reward/accuracy']:.3f} of {HELD_OUT} held-out pairs")
    console.print(f"KL from the SFT model in the last round: {task.last('kl/mean'):.1f} nats per review")
    by_vader = (written(share(rows, "positive")) for rows in (before, after))
    console.print("positive by VADER:  {}  →  {}".format(*by_vader), markup=False)


def pairs(reviews: list[Review]) -> list[dict[str, str]]:
    """Return pairs of a favourable and an unfavourable review, in the order of the reviews."""
    good, bad = (texts([each for each in reviews if each["label"] == label]) for label in (1, 0))
    return [{"chosen": chosen, "rejected": rejected} for chosen, rejected in zip(good, bad, strict=False)]


if __name__ == "__main__":
    main()
