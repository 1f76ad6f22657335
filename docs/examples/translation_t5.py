"""Teach a small T5 to translate English number words into German ones from scratch, then improve it by PPO.

    python translation_t5.py [--seed 0] [--epochs 6] [--steps 60] [--out runs]

    two hundred seventy three thousand forty one  ->  zwei hundert drei und siebzig tausend ein und vierzig

German puts the ones before the tens, with `und` between, so a word-by-word translation is never correct. A T5 with
0.43 M parameters is trained on 4000 pairs (SFT), stopped while it still makes mistakes, and then trained without pairs:
PPO samples translations of other numbers, and the reward is their word-level similarity to the correct one. Measured is
the share of completely correct greedy translations of 500 numbers held out from both trainings:

    seed   after SFT   after 60 rounds of PPO
    0      .648        .900
    1      .882        .954
    2      .698        .944

Measured with `clip_value: 0.2` and `target_kl: null`, which were the defaults; not repeated with the present ones.
PPO took 64 to 67 CPU seconds each time, with OMP_NUM_THREADS=1. With a learning rate of 1e-3 the policy
loses more in the first rounds, while the value head is untrained, than it regains later.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config

import rlcore

ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
GERMAN = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
SFT = {"name": "sft", "batch_size": 64, "optimizer": {"lr": 2e-3, "max_grad_norm": 0.0}}
PPO = {
    "name": "ppo",
    "rollouts": 256,
    "batch_size": 128,
    "epochs": 4,
    "kl_coef": 0.0,  # no reference model: a translation is right or wrong regardless of the initial policy
    "lam": 1.0,  # outputs are short, and the value head starts untrained
    "value_coef": 0.5,
    "optimizer": {"lr": 2e-4, "scheduler": "linear", "max_grad_norm": 0.0},
}
GEN = {"max_new_tokens": 16}
EVAL = {"gen": {"temperature": 0}, "batch_size": 500, "show": 0}
NUM_HELD_OUT, NUM_PAIRS, NUM_PROMPTS = 500, 4000, 8000


def main() -> None:
    """Train by SFT and PPO, and print translations of both."""
    options = parse_options()
    chance = random.Random(options.seed)  # noqa: S311 (not used for secrets)
    numbers = chance.sample(range(1, 1_000_000), NUM_HELD_OUT + NUM_PAIRS + NUM_PROMPTS)
    held_out, pairs = numbers[:NUM_HELD_OUT], numbers[NUM_HELD_OUT:][:NUM_PAIRS]
    prompts = numbers[NUM_HELD_OUT + NUM_PAIRS :]
    imitation = rlcore.train(
        model_config(),
        tokenizer=tokenizer(),
        trainer=SFT,
        samples=[[english(number), german(number)] for number in pairs],
        eval_prompts=rows(held_out),
        metric_fn=metric_fn,
        gen=GEN,
        eval=EVAL,
        run={"epochs": options.epochs, "seed": options.seed, **folder_of(options.out, "translation-sft")},
    )
    examples = held_out[:8]
    before = imitation.generate([english(number) for number in examples], temperature=0, **GEN)
    improved = rlcore.train(
        str(imitation.run_dir / "model"),
        trainer=PPO,
        reward_fn=reward_fn,
        prompts=rows(prompts),
        eval_prompts=rows(held_out),
        metric_fn=metric_fn,
        gen=GEN,
        eval=EVAL,
        run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, "translation-ppo")},
    )
    after = improved.generate([english(number) for number in examples], temperature=0, **GEN)

    console = Console()
    console.print(translations_table(examples, before, after))
    shares = [result.metrics["eval/right"] for result in (imitation, improved)]
    console.print(
        f"right of {NUM_HELD_OUT} held-out numbers: {shares[0]:.3f} before PPO, [bold]{shares[1]:.3f}[/] after"
    )
    console.print(
        f"the run:  {improved.run_dir}  (config.yaml, metrics.jsonl, completions.jsonl, checkpoints/)", soft_wrap=True
    )
    console.print(f'the model:  AutoModelForSeq2SeqLM.from_pretrained("{improved.run_dir / "model"}")', soft_wrap=True)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the numbers and of both trainings")
    parser.add_argument("--epochs", type=float, default=6, help="passes over the pairs before PPO")
    parser.add_argument("--steps", type=int, default=60, help="rounds of PPO")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    return parser.parse_args()


def folder_of(out: Path, name: str) -> dict[str, object]:
    """Return the run options of a folder, overwriting an earlier run of the same name."""
    return {"root": str(out), "name": name, "overwrite": True}


def rows(numbers: list[int]) -> list[dict[str, object]]:
    """Return prompts with a column that reward and metric functions receive."""
    return [{"prompt": english(number), "number": number} for number in numbers]


def reward_fn(outputs: list[str], number: list[int]) -> list[float]:
    """Return the similarity of each translation to the correct one."""
    return [similarity(output, german(each)) for output, each in zip(outputs, number, strict=True)]


def metric_fn(outputs: list[str], number: list[int]) -> dict[str, list[float]]:
    """Return which translations are completely correct."""
    return {"right": [float(reward == 1.0) for reward in reward_fn(outputs, number)]}


def translations_table(numbers: list[int], before: list[str], after: list[str]) -> Table:
    """Return a table of translations before and after PPO."""
    table = Table("", "number", "after SFT", "after PPO", title="Held-out numbers", show_lines=True)
    for number, old, new in zip(numbers, before, after, strict=True):
        table.add_row(str(number), english(number), *(text.strip() + _mark(text, number) for text in (old, new)))
    return table


def _mark(text: str, number: int) -> str:
    return "" if similarity(text, german(number)) == 1.0 else "  [red](wrong)[/]"


def english(number: int) -> str:
    """Return a number below a million in English words."""
    if number >= 1000:
        return _joined(english(number // 1000), "thousand", number % 1000, english)
    if number >= 100:
        return _joined(ENGLISH[number // 100], "hundred", number % 100, english)
    if number < 20:
        return ENGLISH[number]
    ones = number % 10
    return f"{ENGLISH_TENS[number // 10 - 2]} {ENGLISH[ones]}" if ones else ENGLISH_TENS[number // 10 - 2]


def german(number: int) -> str:
    """Return a number below a million in German words, with spaces between the parts of a compound."""
    words = _german_parts(number)
    return f"{words}s" if words.split()[-1] == "ein" else words


def _german_parts(number: int) -> str:
    if number >= 1000:
        return _joined(_german_parts(number // 1000), "tausend", number % 1000, _german_parts)
    if number >= 100:
        return _joined(GERMAN[number // 100], "hundert", number % 100, _german_parts)
    if number < 20:
        return GERMAN[number]
    ones, tens = number % 10, GERMAN_TENS[number // 10 - 2]
    return f"{GERMAN[ones]} und {tens}" if ones else tens


def _joined(count: str, unit: str, rest: int, spell: Callable[[int], str]) -> str:
    return f"{count} {unit} {spell(rest)}" if rest else f"{count} {unit}"


def similarity(output: str, target: str) -> float:
    """Return 1 for a correct translation, less for each inserted, deleted or changed word, but at least 0."""
    said, right = output.split(), target.split()
    row = list(range(len(right) + 1))
    for i, word in enumerate(said, start=1):
        above, row[0] = row[0], i
        for j, due in enumerate(right, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != due))
    return max(0.0, 1.0 - row[-1] / len(right))


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer that appends </s> to every text, as T5's does."""
    words = [*ENGLISH, *ENGLISH_TENS, "hundred", "thousand", *GERMAN, *GERMAN_TENS, "hundert", "tausend", "und", "eins"]
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 (no password but a token)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def model_config() -> T5Config:
    """Return the configuration of a T5 with two encoder and two decoder layers."""
    return T5Config(
        vocab_size=len(tokenizer()), d_model=96, d_kv=24, d_ff=256, num_heads=4, num_layers=2, num_decoder_layers=2,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
