"""A pipeline that adds the length of every prompt as a column, which reward functions can receive."""

import attrs
from transformers import AutoTokenizer

from rlcore.settings import DataConfig
from rlcore_transformers.data.prompts import build_prompts


def measured(source, tokenizer, data, *, max_length, what="prompts"):
    prompts = build_prompts(source, tokenizer, data, max_length=max_length, what=what)
    return [attrs.evolve(each, columns={**each.columns, "prompt_length": len(each.tokens)}) for each in prompts]


prompts = measured(["My cat", "Dogs"], AutoTokenizer.from_pretrained("gpt2"), DataConfig(), max_length=0)
assert [prompt.text for prompt in prompts] == ["My cat", "Dogs"]
assert [prompt.columns["prompt_length"] for prompt in prompts] == [6, 4]  # this tokenizer has one token per byte
