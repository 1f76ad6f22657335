"""Write positive film reviews by ILQL from labelled reviews, without sampling during training.

Every token of a review is rewarded with the review's label, 1 or -1, and gamma is 0, so Q of a token is the expected
label of reviews that contain it there. The model then continues 64 held-out prompts with 24 tokens. The held-out
measure is the share of continuations that VADER finds positive, by the chat model before training, and after it with
`gen.beta` 8, the weight of the Q-functions' advantages; with beta 0 the trained model has only imitated the reviews.
"""

from __future__ import annotations

from chat import evaluations, written
from reviews import texts
from transformers import AutoTokenizer

from benchmarks.smollm.film_reviews import HELD_OUT, positive, share_positive, split
from benchmarks.smollm.runner import Task, source

PLAIN, STEERED = "beta=0.0", "beta=8.0"


def main() -> None:
    """Train on the reviews and their labels, and report the share of positive reviews."""
    task = Task("positive_ilql", __doc__)
    train, _, prompts = split(task)
    folder, where = source(task.model)
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    result = task.train(
        "positive_ilql",
        samples=texts(train),
        rewards=[[2.0 * each["label"] - 1.0] * len(tokenizer(each["text"])["input_ids"]) for each in train],
        eval_prompts=prompts,
        metric_fn=positive,
        curve=("loss/total", f"eval/positive@{PLAIN}", f"eval/positive@{STEERED}"),
    )
    first, last = evaluations(result.run_dir)
    before, imitated, after = (
        share_positive([row for row in rows if row["sampling"] == beta])
        for rows, beta in ((first, PLAIN), (last, PLAIN), (last, STEERED))
    )
    task.report("held-out reviews that VADER finds positive", HELD_OUT, before, after)
    task.console.print(f"with beta 0 after training:  {written(imitated)}", markup=False)


if __name__ == "__main__":
    main()
