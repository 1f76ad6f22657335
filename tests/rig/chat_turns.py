"""Conversations, their tokenisation into samples, and the text of the tokens that these train."""

from __future__ import annotations

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rlcore.settings import DataConfig
from rlcore_transformers.data.chat import Chat
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.turns import tokenise_chats

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTIONS, ANSWERS = ["why ?", "the cat", "the dog"], ["because .", "the\nmat", "the food !"]
THOUGHT = "<think>\nwhy ?\n</think>\n\n"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TALK = [
    {"role": "user", "content": "why ?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "because ."},
]
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def tokenizer_for(byte_tokenizer, family):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()), eos_token="<|eos|>",
        bos_token="<|bos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.special)})
    tokenizer.chat_template = family.template
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def dialogue(turns, thought=""):
    pairs = zip(QUESTIONS[:turns], ANSWERS[:turns], strict=True)
    return [message for asked, said in pairs for message in (user(asked), assistant(thought + said))]


def tokenise(tokenizer, messages, *, first=0, turns="each", **options):
    (samples,) = tokenise_chats(
        tokenizer, [Chat("row", messages, first=first, template=options)], DataConfig(turns=turns)
    )
    return samples


def runs_of(tokens, mask, tokenizer):
    """Decode each run of chosen tokens, special tokens included."""
    runs, run = [], []
    for token, mark in [*zip(tokens, mask, strict=True), (None, False)]:
        if mark:
            run.append(token)
        elif run:
            runs.append(tokenizer.decode(run))
            run = []
    return runs


def chosen(tokenizer, messages, **how):
    """Return the text of each run of chosen tokens of each sample."""
    return [text for tokens, mask in tokenise(tokenizer, messages, **how) for text in runs_of(tokens, mask, tokenizer)]


def sampled_from(tokenizer, messages, **options):
    """Return the tokens of the prompt from which the assistant's next message is sampled."""
    row = {"prompt": messages, "chat_template_kwargs": options}
    (prompt,) = build_prompts([row], tokenizer, DataConfig(), max_length=0)
    return list(prompt.tokens)


MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
