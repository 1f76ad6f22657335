"""The texts of the fine-tuning benchmark, and a GPT-2 of 4 layers, 256 wide, for them.

    python texts.py FOLDER DATA         make the model, with random weights, and its tokenizer (5,000 byte-level pieces)

DATA is a folder with rt_polarity.jsonl (`text`: a sentence of a film review) and gsm8k_train.jsonl (`question`,
`answer`). The model has no dropout, like the configurations of most current families.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.places import ROOT, Unavailable
from rlcore_tools.bench import case_reviews

DATA = ROOT.parent / "shared" / "data"
FILES = {"reviews": case_reviews.FILE, "gsm8k": "gsm8k_train.jsonl"}
END, PAD = "<end>", "<pad>"
VOCABULARY, LONGEST = 5000, 1024


def data_folder() -> Path:
    """Return the folder that contains the texts.

    Raises:
        Unavailable: the folder or a file is missing.
    """
    missing = [str(DATA / name) for name in FILES.values() if not (DATA / name).is_file()]
    if missing:
        raise Unavailable(f"no {' and no '.join(missing)}: JSON lines of `text`, and of `question` and `answer`")
    return DATA


def read_pairs(kind: str, folder: Path, count: int) -> list[tuple[str, str]]:
    """Return the first `count` texts as prompt and output; a review has an empty prompt."""
    with (folder / FILES[kind]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(count), file, strict=False)]
    if kind == "reviews":
        return [("", row["text"]) for row in rows]
    return [(row["question"] + "\n", row["answer"]) for row in rows]


def read_preferences(folder: Path, count: int) -> list[dict[str, str]]:
    """Return up to `count` pairs of reviews as rows of preferences: a favourable one is preferred to another."""
    with (folder / FILES["reviews"]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    favourable, others = ([f" {row['text']}" for row in rows if row["label"] == label] for label in (1, 0))
    return [
        {"prompt": "A favourable review:", "chosen": chosen, "rejected": rejected}
        for chosen, rejected in zip(favourable[:count], others, strict=False)
    ]


def make(folder: str, data: Path) -> None:
    """Train the tokenizer on all texts, and save it with a model of random weights."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    pieces = ByteLevelBPETokenizer()
    texts = [prompt + output for kind in FILES for prompt, output in read_pairs(kind, data, 100_000)]
    pieces.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=[END, PAD], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, eos_token=END, pad_token=PAD)  # noqa: SLF001  transformers takes nothing else
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=LONGEST, n_embd=256, n_layer=4, n_head=8,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
