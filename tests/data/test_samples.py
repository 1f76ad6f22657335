from __future__ import annotations

import copy

import datasets
import pytest
from chat_turns import runs_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import Sample, stack_groups
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.tokens import encode_continuations

EOS = 30  # of the character tokenizer
TALK = [
    {"role": "user", "content": "why ?"},
    {"role": "assistant", "content": "because"},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "the dog ."},
]


def build(source, tokenizer, *, max_length=0, **options):
    return build_samples(source, tokenizer, DataConfig(**options), max_length=max_length)


def chosen(sample, tokenizer):
    return runs_of(sample.tokens, sample.action_mask, tokenizer)


def test_all_tokens_of_a_text_but_the_first_are_trained(char_tokenizer):
    (sample,) = build(["abc"], char_tokenizer)
    assert sample.tokens == (0, 1, 2, EOS)
    assert sample.action_mask == (False, True, True, True)
    assert sample.ended


def test_all_tokens_of_a_text_after_bos_are_trained(llama_tokenizer):
    (sample,) = build(["the cat"], llama_tokenizer)
    assert sample.tokens == (*llama_tokenizer("the cat")["input_ids"], 2)
    assert sample.action_mask == (False, *[True] * (len(sample.tokens) - 1))


def test_only_outputs_of_a_dialogue_are_trained_and_each_ends_with_eos(char_tokenizer):
    (sample,) = build([["a", "bc", "de", "f"]], char_tokenizer)
    assert sample.tokens == (0, 1, 2, EOS, 3, 4, 5, EOS)
    assert sample.action_mask == (False, True, True, True, False, False, True, True)


def test_the_option_for_eos_leaves_it_out(char_tokenizer):
    (sample,) = build([["a", "bc", "de", "f"]], char_tokenizer, append_eos=False)
    assert sample.tokens == (0, 1, 2, 3, 4, 5)


def test_eos_written_by_the_user_is_not_doubled(char_tokenizer):
    text, pair = build(["ab</s>", ["a", "b</s>"]], char_tokenizer)
    assert text.tokens == pair.tokens == (0, 1, EOS)


def test_eos_is_trained_also_if_it_is_the_padding_token(byte_tokenizer):
    (sample,) = build([["the cat", " sat"]], byte_tokenizer)
    assert sample.tokens[-1] == byte_tokenizer.pad_token_id
    assert sample.action_mask[-1]


@pytest.mark.parametrize("key", ["output", "completion", "response"])
def test_a_row_with_prompt_and_completion_gives_the_sample_of_a_pair(char_tokenizer, key):
    assert build([{"prompt": "a", key: "b", "id": 3}], char_tokenizer) == build([["a", "b"]], char_tokenizer)


def test_every_form_of_source_gives_the_same_samples(char_tokenizer):
    pairs = [("a", "b"), ("cd", "e")]
    rows = [{"prompt": prompt, "output": output} for prompt, output in pairs]
    expected = build(pairs, char_tokenizer)
    assert build(rows, char_tokenizer) == build(datasets.Dataset.from_list(rows), char_tokenizer) == expected
    for column in ("prompt", "text"):
        rows = [{"text": "abc", "label": 1}]
        assert build(rows, char_tokenizer, prompt_column=column) == build(["abc"], char_tokenizer)


def test_prompt_tokens_are_those_of_the_prompts_pipeline(llama_tokenizer, byte_tokenizer, char_tokenizer):
    for tokenizer in (llama_tokenizer, byte_tokenizer, char_tokenizer):
        (sample,) = build([["the cat", " sat on"]], tokenizer)
        (prompt,) = build_prompts(["the cat"], tokenizer, DataConfig(), max_length=0)
        assert sample.tokens[: len(prompt.tokens)] == prompt.tokens
        assert sample.action_mask == tuple(i >= len(prompt.tokens) for i in range(len(sample.tokens)))


@pytest.mark.parametrize("turns", [["the cat", " sat"], ["the c", "at sat"], ["why ?", "\nthe", " dog", "0 !"]])
def test_tokens_of_a_dialogue_decode_to_its_joined_texts(llama_tokenizer, byte_tokenizer, turns):
    for tokenizer in (llama_tokenizer, byte_tokenizer):
        (sample,) = build([turns], tokenizer)
        assert tokenizer.decode(sample.tokens, skip_special_tokens=True) == "".join(turns)


def test_building_rows_does_not_change_the_callers_rows(chat_tokenizer):
    rows = [["a", "b"], {"prompt": "a", "output": "b"}, "abc", {"messages": TALK}]
    before = copy.deepcopy(rows)
    build(rows, chat_tokenizer)
    assert rows == before


def test_only_the_assistants_turns_are_trained_including_their_end_token(chat_tokenizer):
    direct, mapped = build([TALK, {"messages": TALK}], chat_tokenizer)
    assert direct == mapped
    assert list(direct.tokens) == chat_tokenizer.apply_chat_template(TALK, return_dict=False)
    assert chosen(direct, chat_tokenizer) == ["because<|end|>", "the dog .<|end|>"]


def test_a_template_that_marks_generations_gives_the_same_turns(chat_tokenizer):
    by_prefix = build([TALK], chat_tokenizer)
    chat_tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{{ '\n' }}{% endfor %}"
    )
    assert build([TALK], chat_tokenizer) == by_prefix
    (last,) = build([{"prompt": TALK[:3], "completion": TALK[3:]}], chat_tokenizer)
    assert chosen(last, chat_tokenizer) == ["the dog .<|end|>"]


def test_only_the_completion_of_a_conversation_is_trained(chat_tokenizer):
    (sample,) = build([{"prompt": TALK[:3], "completion": TALK[3:]}], chat_tokenizer)
    assert chosen(sample, chat_tokenizer) == ["the dog .<|end|>"]
    (prompt,) = build_prompts([TALK[:3]], chat_tokenizer, DataConfig(), max_length=0)
    assert sample.tokens[: len(prompt.tokens)] == prompt.tokens
    assert sample.action_mask[len(prompt.tokens)]
    assert not any(sample.action_mask[: len(prompt.tokens)])


def test_eos_ends_a_conversation_whose_template_writes_no_end(chat_tokenizer):
    chat_tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    samples = build([TALK], chat_tokenizer, turns="each")
    assert [chosen(sample, chat_tokenizer) for sample in samples] == [["because\n<|eos|>"], ["the dog .\n<|eos|>"]]
    without = build([TALK], chat_tokenizer, append_eos=False, turns="each")
    assert [sample.tokens for sample in without] == [sample.tokens[:-1] for sample in samples]


def test_a_template_without_the_assistants_turns_is_refused(chat_tokenizer):
    chat_tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): the policy would be sampled from"):
        build([TALK], chat_tokenizer)


def test_a_long_sample_is_refused_or_cut_on_the_right(char_tokenizer):
    assert build([["ab", "cd"]], char_tokenizer, max_length=5)[0].ended
    with pytest.raises(DataError, match=r"samples\[1\]: has 5 tokens, .*context of 4;.*max_sample_tokens to at most 4"):
        build([["a", "b"], ["ab", "cd"]], char_tokenizer, max_length=4)
    (cut,) = build([["ab", "cd"]], char_tokenizer, max_length=4, max_sample_tokens=3)
    assert (cut.tokens, cut.action_mask, cut.ended) == ((0, 1, 2), (False, False, True), False)


def test_text_before_the_first_output_is_truncated_like_a_prompt(char_tokenizer, llama_tokenizer):
    rows = [["abc", "d", "ef", "g"], "abcdef", ["ab", "c"]]
    cut, text, whole = build(rows, char_tokenizer, max_prompt_tokens=2, append_eos=False)
    assert (cut.tokens, cut.action_mask) == ((1, 2, 3, 4, 5, 6), (False, False, True, False, False, True))
    assert [sample.has_whole_prompt for sample in (cut, text, whole)] == [False, True, True]
    assert (text.tokens, whole.tokens) == ((0, 1, 2, 3, 4, 5), (0, 1, 2))
    (sample,) = build([["the cat sat", "on"]], llama_tokenizer, max_prompt_tokens=2)
    assert sample.tokens[0] == llama_tokenizer.bos_token_id
    assert sample.action_mask.index(True) == 2


def test_a_sample_cut_before_its_output_is_refused(char_tokenizer):
    with pytest.raises(
        DataError, match=r"samples\[0\]: has no token .*once truncated to data.max_sample_tokens = 2 .*raise"
    ):
        build([["abc", "d"]], char_tokenizer, max_sample_tokens=2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"samples is empty; at least one sample is needed"),
        (["a", ["a", "b", "c"]], r"samples\[1\]: has 3 texts, but prompts and outputs alternate.*even"),
        ([["a"]], r"samples\[0\]: has 1 texts"),
        ([[]], r"samples\[0\]: has 0 texts"),
        ([["a", "b", "c", ""]], r"samples\[0\]\[3\]: is an empty output"),
        ([["a", 3]], r"samples\[0\]\[1\]: is 3 \(int\), not a string"),
        ([7], r"samples\[0\]: is 7 \(int\); a sample is a string, a list"),
        (
            [{"prompt": "a", "chosen": "b", "rejected": "c"}],
            r"samples\[0\]: has the key 'chosen', as preferences have",
        ),
        (
            [{"prompt": "a", "completions": ["b"], "labels": [True]}],
            r"as answers in steps have",
        ),
        ([{"question": "a"}], r"samples\[0\]: has an unknown set of keys \('question'\); pass 'prompt' with one of"),
        (
            [{"prompt": "a", "output": 3}],
            r"samples\[0\]: 'prompt' has the type str, and 'output' int; both must be strings",
        ),
        ([TALK], r"samples\[0\]: is a conversation, and the tokenizer has no chat template"),
    ],
)
def test_unusable_samples_are_named(char_tokenizer, rows, message):
    with pytest.raises(DataError, match=message):
        build(rows, char_tokenizer)


def test_a_sample_without_a_chosen_token_is_refused(char_tokenizer):
    with pytest.raises(DataError, match=r"samples\[1\]: has no token for the policy to choose \(1 tokens in all"):
        build(["ab", "a"], char_tokenizer, append_eos=False)


def test_a_conversation_without_the_assistant_is_refused(chat_tokenizer):
    with pytest.raises(DataError, match=r"samples\[0\]: no message has the role 'assistant' \(roles: 'user'\)"):
        build([TALK[:1]], chat_tokenizer)


def test_eos_of_a_tokenizer_without_one_is_refused(char_tokenizer):
    char_tokenizer.eos_token = None
    with pytest.raises(DataError, match=r"data\.append_eos: .* no EOS token .*data\.append_eos=false"):
        build(["ab"], char_tokenizer)
    assert build(["ab"], char_tokenizer, append_eos=False)[0].tokens == (0, 1)


def test_groups_of_different_sizes_are_filled_up_with_rows_without_a_chosen_token() -> None:
    a, b, c = (Sample(tuple(range(size)), (False,) + (True,) * (size - 1)) for size in (2, 3, 4))
    batch, size = stack_groups([(a,), (b, c, a)], scores=[(0.5,), (1.0, 2.0, 3.0)])
    assert size == 3
    assert batch.num_actions.tolist() == [1, 0, 0, 2, 3, 1]
    assert batch.mask.sum(1).tolist() == [2, 2, 2, 3, 4, 2]
    assert batch["scores"].tolist() == [0.5, 0.0, 0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="column 'scores': must have one number for each sequence of each group"):
        stack_groups([(a,), (b, c)], scores=[(0.5,), (1.0,)])


def test_a_word_that_continues_a_text_is_kept_by_a_tokenizer_that_declares_no_unknown_token() -> None:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "it": 1, "sat": 2}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>")
    assert encode_continuations(tokenizer, ["it sat"]) == [[1, 2]]
