"""A model, a tokenizer and rows on which both programs of the comparison of losses train.

Two optimizer steps over all rows at once: AdamW at 1e-3 without weight decay, gradients clipped at norm 1, no dropout.
The weights are a formula, not random numbers, so that they are the same with any version of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedTokenizerFast

LR, MAX_GRAD_NORM, STEPS, BETA = 1e-3, 1.0, 2, 0.1
WORDS = "the a cat dog bird sat ran sang rained on mat road tree it was good bad very , . ? what did do".split()  # noqa: SIM905
CHAT_WORDS = ["<|im_start|>", "<|im_end|>", "user", "assistant", "\n"]
TEXTS = [
    {"text": text} for text in ("the cat sat on the mat .", "a dog ran .", "it rained", "the bird sang , very good .")
]
COMPLETIONS = [
    {"prompt": "what did the cat do ?", "completion": " it sat on the mat ."},
    {"prompt": "what did a dog do ?", "completion": " ran ."},
    {"prompt": "what did the very good bird do ?", "completion": " the bird sang"},
]
PAIRS = [
    {"prompt": "what did the cat do ?", "chosen": " it sat on the mat .", "rejected": " it ran ."},
    {"prompt": "what did a dog do ?", "chosen": " ran .", "rejected": " sang , very bad"},
    {"prompt": "the bird", "chosen": " was good", "rejected": " was a dog on the road ."},
]
LABELS = [
    {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
    for pair in PAIRS
    for side in ("chosen", "rejected")
]
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    for question, answer in (("what did the cat do ?", "it sat on the mat ."), ("what did a dog do ?", "ran ."))
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|> ' + message.role + ' \n ' }}"
    "{% if message.role == 'assistant' %}OPEN{{ message.content + ' <|im_end|> \n ' }}CLOSE"
    "{% else %}{{ message.content + ' <|im_end|> \n ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant \n ' }}{% endif %}"
)
"""ChatML with spaces between the words; TRL's training templates mark an assistant's turn up to the last line break."""
CASES: dict[str, list[Any]] = {
    "sft on completions": COMPLETIONS, "sft on texts": TEXTS, "sft on conversations": CONVERSATIONS, "dpo": PAIRS,
    "ipo": PAIRS, "hinge": PAIRS, "kto": LABELS, "reward model": PAIRS,
}  # fmt: skip
"""Name of each comparison → the rows it trains on."""


def chat_template(*, is_marked: bool) -> str:
    """Return the chat template, with or without the marks of what an assistant wrote."""
    marks = ("{% generation %}", "{% endgeneration %}") if is_marked else ("", "")
    return CHATML.replace("OPEN", marks[0]).replace("CLOSE", marks[1])


def write_model(folder: Path, *, is_scorer: bool) -> None:
    """Write the model, with a head for scores or for tokens, and its tokenizer."""
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", *WORDS, *CHAT_WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": CHAT_WORDS[:2]})
    tokenizer.chat_template = chat_template(is_marked=False)
    config = GPT2Config(
        vocab_size=len(vocabulary), n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1,
        pad_token_id=0, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    if is_scorer:
        config.num_labels = 1
    model: Any = (GPT2ForSequenceClassification if is_scorer else GPT2LMHeadModel)(config)
    with torch.no_grad():
        for index, (name, weight) in enumerate(model.named_parameters()):
            angles = torch.arange(weight.numel(), dtype=torch.float64) * 0.7 + index
            start = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            weight.copy_((start + 0.3 * angles.sin()).reshape(weight.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
