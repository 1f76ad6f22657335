"""Supervised fine-tuning on conversations: sums, asked and answered in two turns, with a chat template."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

METRIC, BETTER = "loss/total", "less"
LONGEST_ANSWER = 4  # tokens
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def train(
    folder: Path,
    *,
    seed: int,
    quick: bool,
    data: Path | None,  # noqa: ARG001  the texts of others
) -> dict[str, float]:
    """Learn the answers with a Llama of two layers, 64 wide, from random weights; return how it does on others."""
    from transformers import LlamaConfig

    import rlcore

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    off = {"at_end": False}
    result = rlcore.train(
        config, tokenizer=tokenizer, samples=conversations(320 if quick else 1600),
        trainer={"name": "sft", "batch_size": 32, "optimizer": {"lr": 3e-3, "scheduler": "linear"}},
        run={"root": str(folder), "name": "run", "seed": seed, "epochs": 1 if quick else 3},
        eval=off, checkpoint=off, loggers=[],
    )  # fmt: skip
    prompts = [messages[: 3 - 2 * (i % 2)] for i, messages in enumerate(conversations(48, seed=2))]  # both answers
    answers = result.generate(prompts, max_new_tokens=LONGEST_ANSWER, temperature=0)
    alone = greedy_answers(folder / "run" / "model", tokenizer, prompts)
    return {
        "loss of held-out answers": held_out_loss(folder / "run" / "model", tokenizer),
        "answers that padding changes": sum(a != b for a, b in zip(answers, alone, strict=True)) / len(prompts),
    }


def held_out_loss(model_folder: Path, tokenizer: object) -> float:
    """Return the mean negative log-likelihood of the tokens of other answers, computed without rlcore."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    losses = []
    for messages in conversations(64, seed=1):
        ids, is_answer = marked_answers(messages, tokenizer)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        losses.append(each[torch.tensor(is_answer[1:])])
    return float(torch.cat(losses).mean())


def greedy_answers(model_folder: Path, tokenizer: Any, prompts: list[list[dict[str, str]]]) -> list[str]:
    """Return the most likely answer to each prompt by itself, without padding, cache and rlcore."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    answers = []
    for messages in prompts:
        ids = [*marked_answers(messages, tokenizer)[0], tokenizer.convert_tokens_to_ids("<assistant>")]
        begin = len(ids)
        while len(ids) < begin + LONGEST_ANSWER and ids[-1] != tokenizer.eos_token_id:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        answers.append(tokenizer.decode(ids[begin:], skip_special_tokens=True))
    return answers


def marked_answers(messages: list[dict[str, str]], tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and which of them belong to an answer; its end does, its role does not."""
    ids, is_answer = [], []
    for message in messages:
        said = tokenizer.convert_tokens_to_ids([f"<{message['role']}>", *message["content"], "<end>"])
        ids += said
        is_answer += [False] + [message["role"] == "assistant"] * (len(said) - 1)
    return ids, is_answer


def conversations(count: int, *, seed: int = 0) -> list[list[dict[str, str]]]:
    """Return conversations in which a user asks for two sums, and an assistant answers them."""
    numbers = random.Random(seed)  # noqa: S311  no secret
    found = []
    for _ in range(count):
        a, b, c = (numbers.randrange(20) for _ in range(3))
        found.append([
            {"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": f"{a + b}"},
            {"role": "user", "content": f"+{c}"}, {"role": "assistant", "content": f"{a + b + c}"},
        ])  # fmt: skip
    return found


def make_tokenizer() -> Any:
    """Return a tokenizer with one token per character, and one per role."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    roles = ["<user>", "<assistant>"]
    named = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>"}
    pieces = [*named.values(), *roles, *"0123456789+"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=named["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=roles, **named)
    tokenizer.chat_template = TEMPLATE
    return tokenizer
