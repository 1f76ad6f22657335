"""A pipeline whose samples have the first half of a text as prompt and the second as output."""

from transformers import AutoTokenizer

from rlcore.settings import DataConfig
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source


def halves(source, tokenizer, data, *, max_length, what="samples"):
    pairs = [[text[: len(text) // 2], text[len(text) // 2 :]] for text in load_source(source, what)]
    return build_samples(pairs, tokenizer, data, max_length=max_length, what=what)


[sample] = halves(["cats sit"], AutoTokenizer.from_pretrained("gpt2"), DataConfig(), max_length=0)
assert list(sample.action_mask) == [False] * 4 + [True] * 5  # the second half, and EOS
