"""Write favourable film reviews by ILQL from labelled reviews, without sampling during training.

Every token of a review is rewarded with the review's label, 1 or -1, and gamma is 0, so Q of a token is the expected
label of reviews that contain it there. The model then continues 64 held-out prompts with 24 tokens. ILQL is trained on
one half of the labelled reviews, and the other half trains a classifier of words (docs/examples/reviews.py). The
held-out measure is the share of continuations that the classifier finds favourable, by the chat model before training,
and after it with `gen.beta` 8, the weight of the Q-functions' advantages; with beta 0 the trained model has only
imitated the reviews.
"""

from __future__ import annotations

from chat import evaluations, written
from reviews import texts
from transformers import AutoTokenizer

from benchmarks.smollm.film_reviews import HELD_OUT, judges, share, split
from benchmarks.smollm.runner import Task, source

PLAIN, STEERED = "beta=0.0", "beta=8.0"
NAMES = "favourable", "positive"


def main() -> None:
    """Train on the reviews and their labels, and report the share of positive reviews."""
    task = Task("positive_ilql", __doc__)
    train, held_out, prompts = split(task)
    own, others = train[: len(train) // 2], train[len(train) // 2 :]
    metric_fn = judges(task, others, held_out)
    folder, where = source(task.model)
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    result = task.train(
        "positive_ilql",
        samples=texts(own),
        rewards=[[2.0 * each["label"] - 1.0] * len(tokenizer(each["text"])["input_ids"]) for each in own],
        eval_prompts=prompts,
        metric_fn=metric_fn,
        curve=("loss/total", *(f"eval/{name}@{beta}" for name in NAMES for beta in (PLAIN, STEERED))),
    )
    first, last = evaluations(result.run_dir)
    chosen = [
        [row for row in rows if row["sampling"] == beta]
        for rows, beta in ((first, PLAIN), (last, PLAIN), (last, STEERED))
    ]
    before, imitated, after = (share(rows, "favourable") for rows in chosen)
    task.report("held-out reviews that a classifier finds favourable", HELD_OUT, before, after)
    task.console.print(f"with beta 0 after training:  {written(imitated)}", markup=False)
    by_vader = (written(share(rows, "positive")) for rows in chosen)
    task.console.print("positive by VADER:  {}, with beta 0 {}, with beta 8 {}".format(*by_vader), markup=False)


if __name__ == "__main__":
    main()
