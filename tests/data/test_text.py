from __future__ import annotations

import pytest
import torch

from rlcore.data.text import render_outputs
from rlcore.settings import DataConfig
from rlcore.types import Trajectories
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.tokens import decode


def sampled(tokenizer, prompts, outputs):
    """Return prompts and sampled ids as one batch, in a sampler's format."""
    tokens = [[*prompt.tokens, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    chosen = [[False] * len(p.tokens) + [True] * len(o) for p, o in zip(prompts, outputs, strict=True)]
    return Trajectories.stack(tokens, chosen, pad_id=tokenizer.pad_token_id or 0)


def prompts_of(tokenizer, *texts):
    return build_prompts(list(texts), tokenizer, DataConfig(), max_length=0)


def test_samples_are_prompts_and_outputs_side_by_side(llama_tokenizer, byte_tokenizer):
    for tokenizer in (llama_tokenizer, byte_tokenizer):
        wholes = ["the cat sat on the mat .", "the dog ate", "why ? because ."]
        prompts = prompts_of(tokenizer, "the cat", "the dog", "why ?")
        ids = tokenizer(wholes, add_special_tokens=False)["input_ids"]
        heads = tokenizer([prompt.text for prompt in prompts], add_special_tokens=False)["input_ids"]
        outputs = [row[len(head) :] for row, head in zip(ids, heads, strict=True)]
        texts = render_outputs(tokenizer, sampled(tokenizer, prompts, outputs), prompts, ())
        assert [p.text + text for p, text in zip(prompts, texts, strict=True)] == wholes
        assert texts[1] == " ate"


def test_special_tokens_are_left_out_of_decoded_text(char_tokenizer):
    prompts = prompts_of(char_tokenizer, "a", "b")
    assert render_outputs(char_tokenizer, sampled(char_tokenizer, prompts, [[2, 30], [30]]), prompts, ()) == ["c", ""]


def test_padding_on_either_side_does_not_change_the_result(char_tokenizer):
    prompts = prompts_of(char_tokenizer, "abc", "d")
    batch = sampled(char_tokenizer, prompts, [[4, 5, 30], [6]])
    pad = torch.nn.functional.pad
    left = Trajectories(
        tokens=pad(batch.tokens, (3, 2), value=7), mask=pad(batch.mask, (3, 2)),
        action_mask=pad(batch.action_mask, (3, 2)), ended=batch.ended,
    )  # fmt: skip
    assert render_outputs(char_tokenizer, left, prompts, ()) == ["ef", "g"]


def test_text_ends_before_the_stop_sequence_that_comes_first(char_tokenizer):
    prompts = prompts_of(char_tokenizer, "a", "a", "a!")
    batch = sampled(char_tokenizer, prompts, [[1, 2, 3, 4], [1, 1], [28, 1]])
    assert render_outputs(char_tokenizer, batch, prompts, ("de", "c", "")) == ["b", "bb", "!b"]
    assert render_outputs(char_tokenizer, batch, prompts, ("bcde",)) == ["", "bb", "!b"]


def test_a_character_split_between_tokens_does_not_damage_the_output(byte_tokenizer):
    (e_acute,) = byte_tokenizer(["\u00e9"], add_special_tokens=False)["input_ids"]
    assert len(e_acute) == 2
    (prompt,) = prompts_of(byte_tokenizer, "caf")
    cut = type(prompt)(text="caf\ufffd", tokens=(*prompt.tokens, e_acute[0]))
    (after,) = byte_tokenizer([" the cat"], add_special_tokens=False)["input_ids"]
    batch = sampled(byte_tokenizer, [cut], [[e_acute[1], *after]])
    assert render_outputs(byte_tokenizer, batch, [cut], ()) == ["\ufffd the cat"]


def test_the_same_prompt_may_stand_in_several_rows(char_tokenizer):
    (prompt,) = prompts_of(char_tokenizer, "ab")
    assert render_outputs(char_tokenizer, sampled(char_tokenizer, [prompt] * 2, [[2], [3]]), [prompt] * 2, ()) == [
        "c",
        "d",
    ]


def test_a_number_of_prompts_other_than_that_of_sequences_is_an_error(char_tokenizer):
    prompts = prompts_of(char_tokenizer, "a", "b")
    with pytest.raises(ValueError, match="zip"):
        render_outputs(char_tokenizer, sampled(char_tokenizer, prompts, [[2], [3]]), prompts[:1], ())


@pytest.mark.parametrize("skip", [False, True])
def test_batch_decoding_equals_the_decoding_of_each_text_by_transformers(
    char_tokenizer, llama_tokenizer, byte_tokenizer, skip
):
    for tokenizer in (char_tokenizer, llama_tokenizer, byte_tokenizer):
        special = [tokenizer.eos_token_id]
        rows = [list(range(3, 9)), special, [7, *special, 3, 3], [], list(range(12, 2, -1))]
        each = [tokenizer.decode(row, skip_special_tokens=skip, clean_up_tokenization_spaces=False) for row in rows]
        assert decode(tokenizer, rows, skip_special_tokens=skip) == each


def test_a_tokenizer_class_with_its_own_decode_method_is_used(char_tokenizer):
    class Loud(type(char_tokenizer)):
        def _decode(self, token_ids, **options):
            return super()._decode(token_ids, **options).upper()

    loud = Loud(tokenizer_object=char_tokenizer.backend_tokenizer, eos_token="</s>", pad_token="<pad>")
    assert decode(loud, [[0, 1], [2]], skip_special_tokens=True) == ["AB", "C"]
