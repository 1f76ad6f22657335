"""Teach a small GPT-2 to write film reviews from scratch, then to write favourable ones.

    python reviews.py REVIEWS.jsonl [--seed 0] [--sft-epochs 3] [--steps 100] [--out runs] [--quick]

REVIEWS.jsonl contains one review per line, {"text": ..., "label": 1 or 0}; the figures below are from the 10,662
sentences of Pang & Lee's sentence polarity dataset (ACL 2005). A tenth is held out before anything is trained. The
script trains on the rest
  1. a byte-level BPE tokenizer,
  2. a classifier of sentiment (scikit-learn), whose probability of `positive` is the reward,
  3. a GPT-2 of 3 layers by supervised fine-tuning (SFT) from random weights,
  4. the same by PPO, with a KL penalty against the SFT model, on the first words of reviews as prompts,
and reports the mean reward on prompts from held-out reviews before and after step 4.

Measured with OMP_NUM_THREADS=1; PPO takes about 150 CPU seconds. Each seed has its own split of the reviews. Rewards
are means over 200 held-out prompts with one sample each, by the classifier that PPO was trained against; the KL is that
of the last round, in nats per review:

    seed   accuracy on 1066 held-out reviews    reward before PPO   after   KL
    0      .769                                 .577                .866    7.6
    1      .773                                 .556                .897    8.5
    2      .781                                 .515                .850    8.6

Without `kl_target` and with `kl_coef` .01, seed 2 reaches .937 at a KL of 13.3: the reward alone says little.
The reviews become favourable, but not well written: so small a model trained on 9,600 sentences still misspells words.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore

PROMPT_WORDS = 4
NUM_EVAL_PROMPTS = 200
GEN = {"max_new_tokens": 32}
OPTIMIZER = {"scheduler": "linear", "max_grad_norm": 0.0}
END, PAD = "<end>", "<pad>"

Review = dict[str, Any]


def main() -> None:
    """Train the four parts in turn, and print samples and rewards."""
    options = parse_options()
    console = Console()
    train, held_out = read_reviews(options.reviews, options.seed, limit=200 if options.quick else None)
    classifier = train_classifier(train)
    accuracy = classifier.score(texts(held_out), [review["label"] for review in held_out])
    console.print(f"classifier: {accuracy:.3f} of {len(held_out)} held-out reviews judged rightly")

    def reward_fn(samples: list[str]) -> list[float]:
        return [float(p) for p in classifier.predict_proba(samples)[:, 1]]

    imitation = imitate(train, held_out, options)
    eval_prompts = prompts_from(held_out)[:NUM_EVAL_PROMPTS]
    before = write(imitation, eval_prompts)
    improved = rlcore.train(
        {"path": str(imitation.run_dir / "model"), "unfrozen_layers": 1 if options.quick else 2},
        trainer={
            "name": "ppo",
            "rollouts": 16 if options.quick else 256,
            "batch_size": 8 if options.quick else 64,
            "epochs": 3,
            "kl_coef": 0.015,
            "kl_target": 8.5,  # nats per review; the weight of the penalty adapts, so that the reward cannot be gamed
            "kl_horizon": 1500,
            "optimizer": OPTIMIZER | {"lr": 1e-3, "eps": 1e-5},
        },
        reward_fn=reward_fn,
        prompts=prompts_from(train),
        eval_prompts=eval_prompts,
        eval={"every": 10, "show": 3},
        gen=GEN,
        run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, "reviews-ppo")},
    )
    after = write(improved, eval_prompts)

    console.print(samples_table(before, after, reward_fn))
    old, new = mean(reward_fn(before)), mean(reward_fn(after))
    console.print(f"mean reward on {len(before)} held-out prompts: {old:.3f} before PPO, [bold]{new:.3f}[/] after")
    console.print(
        f"the run:  {improved.run_dir}  (config.yaml, metrics.jsonl, completions.jsonl, checkpoints/)", soft_wrap=True
    )
    console.print(f'the model:  AutoModelForCausalLM.from_pretrained("{improved.run_dir / "model"}")', soft_wrap=True)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reviews", type=Path, help="JSONL file with the fields text and label (1 positive, 0 negative)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of both trainings")
    parser.add_argument("--sft-epochs", type=float, default=3, help="passes over the reviews before PPO")
    parser.add_argument("--steps", type=int, default=100, help="rounds of PPO")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    parser.add_argument("--quick", action="store_true", help="try the script out: 200 reviews and tiny models")
    return parser.parse_args()


def read_reviews(path: Path, seed: int, *, limit: int | None = None) -> tuple[list[Review], list[Review]]:
    """Read, shuffle and split the reviews: nine tenths for training, one tenth held out."""
    reviews = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    random.Random(seed).shuffle(reviews)  # noqa: S311 (not used for secrets)
    reviews = reviews[:limit]
    num_held_out = len(reviews) // 10
    return reviews[num_held_out:], reviews[:num_held_out]


def imitate(train: list[Review], held_out: list[Review], options: argparse.Namespace) -> rlcore.Result:
    """Train a tokenizer and, from random weights, a GPT-2 that writes reviews; return the run."""
    tokenizer = train_tokenizer(texts(train), vocab_size=300 if options.quick else 2000)
    return rlcore.train(
        model_config(tokenizer, layers=2 if options.quick else 3, width=32 if options.quick else 128),
        tokenizer=tokenizer,
        trainer={"name": "sft", "batch_size": 32, "optimizer": OPTIMIZER | {"lr": 2e-3, "warmup_steps": 20}},
        samples=texts(train),
        eval_samples=texts(held_out),
        eval_prompts=prompts_from(held_out)[:5],
        gen=GEN,
        run={"epochs": options.sft_epochs, "seed": options.seed, **folder_of(options.out, "reviews-sft")},
    )


def texts(reviews: Sequence[Review]) -> list[str]:
    """Return the texts of the reviews."""
    return [review["text"] for review in reviews]


def prompts_from(reviews: Sequence[Review]) -> list[str]:
    """Return the first words of every review that is longer than a prompt."""
    words = (review["text"].split() for review in reviews)
    return [" ".join(start[:PROMPT_WORDS]) for start in words if len(start) > PROMPT_WORDS]


def train_tokenizer(lines: list[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; it can encode every text, so it has no unknown token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD)


def train_classifier(reviews: Sequence[Review]) -> Pipeline:
    """Fit a logistic regression on TF-IDF features of words and pairs of words."""
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(features, LogisticRegression(C=10, max_iter=1000))
    return classifier.fit(texts(reviews), [review["label"] for review in reviews])


def model_config(tokenizer: PreTrainedTokenizerFast, *, layers: int, width: int) -> GPT2Config:
    """Return the configuration of a GPT-2 for this tokenizer, without dropout."""
    return GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 32,
        vocab_size=len(tokenizer),
        n_positions=256,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def folder_of(out: Path, name: str) -> dict[str, object]:
    """Return the run options of a folder, overwriting an earlier run of the same name."""
    return {"root": str(out), "name": name, "overwrite": True}


def write(result: rlcore.Result, prompts: list[str]) -> list[str]:
    """Return each prompt with its continuation by the trained model."""
    return [prompt + output for prompt, output in zip(prompts, result.generate(prompts), strict=True)]


def samples_table(before: list[str], after: list[str], reward_fn: Any) -> Table:
    """Return a table of both models' continuations of the first prompts, with rewards."""
    table = Table("after SFT", "reward", "after PPO", "reward", title="Held-out prompts continued", show_lines=True)
    for old, new in list(zip(before, after, strict=True))[:8]:
        old_reward, new_reward = reward_fn([old, new])
        table.add_row(Text(old), f"{old_reward:.2f}", Text(new), f"{new_reward:.2f}")
    return table


if __name__ == "__main__":
    main()
