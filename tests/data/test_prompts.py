from __future__ import annotations

import copy

import datasets
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.preferences.preferences import build_preferences

PLAIN = DataConfig()
CHATS = [[{"role": "user", "content": "why ?"}], [{"role": "user", "content": "the cat"}]]


def build(source, tokenizer, *, max_length=0, **options):
    return build_prompts(source, tokenizer, DataConfig(**options), max_length=max_length)


def test_a_string_becomes_its_text_and_tokens(char_tokenizer):
    (prompt,) = build(["abc"], char_tokenizer)
    assert (prompt.text, prompt.tokens, dict(prompt.columns)) == ("abc", (0, 1, 2), {})


@pytest.fixture
def strict_tokenizer():
    """A tokenizer with the tokens 1 to 9, BOS before every text, and none for anything else."""
    words = {"<s>": 0, **{str(i): i for i in range(1, 10)}}
    backend = Tokenizer(models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<s>", pad_token="<s>")


def test_a_tokenizer_without_an_unknown_token_names_the_row_and_the_text(strict_tokenizer):
    assert [prompt.tokens for prompt in build(["12", "3"], strict_tokenizer)] == [(0, 1, 2), (0, 3)]
    (sample,) = build_samples([["12", "34"]], strict_tokenizer, PLAIN, max_length=0)
    assert sample.tokens == (0, 1, 2, 3, 4, 0)
    wrong = r"\[1\]: cannot be tokenised: .*give the tokenizer an unknown token .*; the text is '2 x'$"
    with pytest.raises(DataError, match=f"^prompts{wrong}"):
        build(["1", "2 x"], strict_tokenizer)
    with pytest.raises(DataError, match=f"^samples{wrong}"):
        build_samples([["1", "2"], ["3", "2 x"]], strict_tokenizer, PLAIN, max_length=0)


def test_a_lone_surrogate_is_refused_with_its_row(char_tokenizer, chat_tokenizer):
    wrong = r"^prompts\[1\]: cannot be tokenised: it contains U\+DC80, half of a character; .*'b\\udc80'$"
    with pytest.raises(DataError, match=wrong):
        build(["a", {"prompt": "b\udc80"}], char_tokenizer)
    with pytest.raises(DataError, match=r"^prompts\[0\]: cannot be tokenised: it contains U\+D800"):
        build([[{"role": "user", "content": "\ud800"}]], chat_tokenizer)


def test_prompts_keep_the_order_of_their_rows(char_tokenizer):
    texts = ["b", "a", "dd", "c"]
    assert [prompt.text for prompt in build(texts, char_tokenizer)] == texts


def test_a_column_missing_from_a_row_is_none(char_tokenizer):
    rows = [{"prompt": "a", "label": 1}, {"hint": "x", "prompt": "b"}, "c"]
    prompts = build(rows, char_tokenizer)
    assert [dict(prompt.columns) for prompt in prompts] == [
        {"label": 1, "hint": None}, {"label": None, "hint": "x"}, {"label": None, "hint": None},
    ]  # fmt: skip
    assert list(prompts[1].columns) == ["label", "hint"]


def test_building_rows_does_not_change_the_callers_rows(chat_tokenizer):
    rows = [{"prompt": "a", "tags": ["x"]}, {"prompt": CHATS[0]}, {"prompt": "why", "other": {"deep": [1]}}]
    before = copy.deepcopy(rows)
    for prompt in build(rows, chat_tokenizer, max_prompt_tokens=2):
        prompt.columns["new"] = 1
    assert rows == before


def test_a_dataset_gives_the_same_prompts_as_its_rows(char_tokenizer):
    rows = [{"prompt": "ab", "label": 0}, {"prompt": "c", "label": 1}]
    assert build(datasets.Dataset.from_list(rows), char_tokenizer) == build(rows, char_tokenizer)


def test_the_prompt_column_is_chosen_by_name(char_tokenizer):
    (prompt,) = build([{"question": "ab", "prompt": "cd"}], char_tokenizer, prompt_column="question")
    assert (prompt.text, dict(prompt.columns)) == ("ab", {"prompt": "cd"})


def test_bos_is_added_if_the_tokenizer_adds_it(llama_tokenizer, byte_tokenizer):
    assert build(["the cat"], llama_tokenizer)[0].tokens == tuple(llama_tokenizer("the cat")["input_ids"])
    assert build(["the cat"], llama_tokenizer)[0].tokens[0] == 1
    assert build(["the cat"], byte_tokenizer)[0].tokens == tuple(byte_tokenizer("the cat")["input_ids"])


def test_the_option_for_bos_adds_it_or_leaves_it_out(llama_tokenizer, byte_tokenizer):
    habit = build(["the cat"], llama_tokenizer)[0].tokens
    assert build(["the cat"], llama_tokenizer, add_bos=True)[0].tokens == habit
    assert build(["the cat"], llama_tokenizer, add_bos=False)[0].tokens == habit[1:]
    plain = build(["the cat"], byte_tokenizer)[0].tokens
    assert build(["the cat"], byte_tokenizer, add_bos=True)[0].tokens == (0, *plain)
    assert build(["the cat"], byte_tokenizer, add_bos=False)[0].tokens == plain


def test_bos_written_by_the_user_is_not_doubled(llama_tokenizer):
    tokens = build(["<s>the cat"], llama_tokenizer)[0].tokens
    assert tokens.count(1) == 1
    assert tokens[0] == 1


def test_bos_without_a_bos_token_is_refused(char_tokenizer):
    with pytest.raises(DataError, match=r"data\.add_bos: the tokenizer has no BOS token; set tokenizer\.bos_token"):
        build(["a"], char_tokenizer, add_bos=True)


def test_an_eos_the_tokenizer_would_append_is_left_out(llama_tokenizer):
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(llama_tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    closing = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    assert closing("the cat")["input_ids"][-1] == 2
    assert build(["the cat"], closing) == build(["the cat"], llama_tokenizer)


def test_a_conversation_is_rendered_up_to_the_assistants_turn(chat_tokenizer):
    for rows in (CHATS, [{"prompt": chat, "label": 1} for chat in CHATS]):
        prompts = build(rows, chat_tokenizer)
        assert prompts[0].text == "<|user|>why ?<|end|>\n<|assistant|>"
        expected = chat_tokenizer.apply_chat_template(CHATS[0], add_generation_prompt=True, return_dict=False)
        assert list(prompts[0].tokens) == expected
        assert prompts[1].text == "<|user|>the cat<|end|>\n<|assistant|>"


def test_a_conversation_that_ends_with_the_assistant_is_continued(chat_tokenizer):
    chat = [*CHATS[0], {"role": "assistant", "content": "because"}]
    assert build([chat], chat_tokenizer)[0].text == "<|user|>why ?<|end|>\n<|assistant|>because"


MOODY = "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood or 'calm' }}: "
SYSTEM = {"role": "system", "content": "go on"}


def test_a_template_receives_the_options_and_those_of_a_row_first(chat_tokenizer):
    chat_tokenizer.chat_template = MOODY + chat_tokenizer.chat_template
    rows = [
        {"prompt": CHATS[0]},
        {"prompt": CHATS[0], "chat_template_kwargs": {"mood": "sad", "other": None}, "tools": []},
        {"prompt": CHATS[0], "tools": '[{"b": 2}]'},
    ]
    heads = [prompt.text.partition("<|user|>")[0] for prompt in build(rows, chat_tokenizer)]
    assert heads == ["calm: ", "sad: ", '[{"b": 2}]calm: ']
    options = {"mood": "glad", "tools": [{"a": 1}]}
    heads = [p.text.partition("<|user|>")[0] for p in build(rows, chat_tokenizer, chat_template_options=options)]
    assert heads == ['[{"a": 1}]glad: ', '[{"a": 1}]sad: ', '[{"b": 2}]glad: ']


def test_the_system_prompt_is_put_in_front_of_conversations_without_one(chat_tokenizer):
    (added,) = build([CHATS[0]], chat_tokenizer, system_prompt="go on")
    assert added == build([[SYSTEM, *CHATS[0]]], chat_tokenizer)[0]
    assert build([[SYSTEM, *CHATS[0]]], chat_tokenizer, system_prompt="else")[0] == added
    assert build(["why ?"], chat_tokenizer, system_prompt="go on") == build(["why ?"], chat_tokenizer)


def test_the_system_prompt_and_options_are_the_same_in_every_pipeline(chat_tokenizer):
    chat_tokenizer.chat_template = MOODY + chat_tokenizer.chat_template
    data = DataConfig(system_prompt="go on", chat_template_options={"mood": "glad"})
    row, answer = {"prompt": CHATS[0], "tools": [{"a": 1}]}, [{"role": "assistant", "content": "because"}]
    (prompt,) = build_prompts([row], chat_tokenizer, data, max_length=0)
    (sample,) = build_samples([{**row, "completion": answer}], chat_tokenizer, data, max_length=0)
    (whole,) = build_samples(
        [{"messages": [*CHATS[0], *answer], "tools": row["tools"]}], chat_tokenizer, data, max_length=0
    )
    rejected = [{"role": "assistant", "content": "the cat"}]
    (pair,) = build_preferences([{**row, "chosen": answer, "rejected": rejected}], chat_tokenizer, data, max_length=0)
    assert prompt.text.startswith('[{"a": 1}]glad: <|system|>go on')
    assert sample == whole == pair.chosen
    assert sample.tokens[: sample.action_mask.index(True)] == prompt.tokens


def test_a_template_without_a_system_role_refuses_the_system_prompt(chat_tokenizer):
    plain = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + plain
    for template, message in ((plain, "does not render data.system_prompt"), (strict, "first is data.system_prompt")):
        chat_tokenizer.chat_template = template
        with pytest.raises(DataError, match=rf"prompts\[0\]: the chat template .*{message}"):
            build([CHATS[0]], chat_tokenizer, system_prompt="go on")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tools": "[{"}, r"'tools' is '\[\{', which is no JSON"),
        ({"tools": 3}, r"'tools' is 3; it must be a list of JSON schemas"),
        ({"chat_template_kwargs": [1]}, r"'chat_template_kwargs' is \[1\]; it must be a mapping"),
    ],
)
def test_wrong_variables_of_a_template_are_named(chat_tokenizer, row, message):
    with pytest.raises(DataError, match=r"prompts\[0\]: " + message):
        build([{"prompt": CHATS[0], **row}], chat_tokenizer)


def test_bos_in_a_template_is_neither_doubled_nor_missed(chat_tokenizer):
    without = build(CHATS, chat_tokenizer)[0]
    assert build(CHATS, chat_tokenizer, add_bos=True)[0].tokens == (0, *without.tokens)
    chat_tokenizer.chat_template = "{{ bos_token }}" + chat_tokenizer.chat_template
    for add_bos in (None, True):
        prompt = build(CHATS, chat_tokenizer, add_bos=add_bos)[0]
        assert prompt.tokens == (0, *without.tokens)
        assert prompt.text == "<|eos|>" + without.text
    assert build(CHATS, chat_tokenizer, add_bos=False)[0] == without


def test_too_long_prompts_lose_tokens_on_the_left_and_text_with_them(char_tokenizer, llama_tokenizer):
    short, long = build(["ab", "abcdef"], char_tokenizer, max_prompt_tokens=4)
    assert (short.text, short.tokens) == ("ab", (0, 1))
    assert (long.text, long.tokens) == ("cdef", (2, 3, 4, 5))
    whole = build(["the cat sat on the mat"], llama_tokenizer)[0]
    cut = build(["the cat sat on the mat"], llama_tokenizer, max_prompt_tokens=4)[0]
    assert cut.tokens == (1, *whole.tokens[-3:])
    assert whole.text.endswith(cut.text)
    assert 0 < len(cut.text) < len(whole.text)


def test_too_long_prompts_lose_tokens_on_the_right_if_the_option_says_so(char_tokenizer, llama_tokenizer):
    short, long = build(["ab", "abcdef"], char_tokenizer, max_prompt_tokens=4, truncation_side="right")
    assert (short.text, short.tokens) == ("ab", (0, 1))
    assert (long.text, long.tokens) == ("abcd", (0, 1, 2, 3))
    whole = build(["the cat sat on the mat"], llama_tokenizer)[0]
    cut = build(["the cat sat on the mat"], llama_tokenizer, max_prompt_tokens=4, truncation_side="right")[0]
    assert cut.tokens == whole.tokens[:4]
    assert whole.text.startswith(cut.text.strip())
    assert 0 < len(cut.text) < len(whole.text)


def test_a_limit_that_leaves_bos_alone_is_refused(llama_tokenizer):
    with pytest.raises(DataError, match=r"prompts\[0\]: data.max_prompt_tokens = 1 leaves room for BOS only; raise it"):
        build(["the cat"], llama_tokenizer, max_prompt_tokens=1)


def test_a_prompt_longer_than_the_context_is_refused_or_truncated_with_a_warning(char_tokenizer, capsys):
    build(["abc"], char_tokenizer, max_length=4)
    with pytest.raises(DataError, match=r"prompts\[1\]: has 4 tokens, .* at most 3; .*max_prompt_tokens to at most 3"):
        build(["a", "abcd"], char_tokenizer, max_length=4)
    assert capsys.readouterr().err == ""
    assert build(["a", "abcd"], char_tokenizer, max_length=4, max_prompt_tokens=3)[1].text == "bcd"
    assert "prompts longer than data.max_prompt_tokens are truncated" in (printed := capsys.readouterr().err)
    assert "read=2 truncated_prompts=1" in printed


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"prompts is empty; at least one prompt is needed"),
        (["a", ""], r"prompts\[1\]: has no tokens, .*set data\.add_bos=true"),
        (["a", 3], r"prompts\[1\]: is 3 \(int\); a prompt is a string"),
        (["a", None], r"prompts\[1\]: is None \(NoneType\)"),
        ([{"prompt": ["a", "b"]}], r"prompts\[0\]\['prompt'\]: is \['a', 'b'\] \(list\)"),
        ([{"text": "a", "n": 1}], r"prompts\[0\]: has no key 'prompt' \(keys: 'text', 'n'\);.*data\.prompt_column"),
        (["b", {"prompt": "a", "outputs": 1}], r"prompts\[1\]: has a column 'outputs'.*rename the column"),
        ([{"prompt": "a", 7: 1}], r"prompts\[0\]: has the key 7 \(int\); keys must be strings"),
        (["a", CHATS[0]], r"prompts\[1\]: is a conversation, and the tokenizer has no chat template"),
    ],
)
def test_unusable_prompts_are_named(char_tokenizer, rows, message):
    with pytest.raises(DataError, match=message):
        build(rows, char_tokenizer)


def test_an_error_of_the_chat_template_is_named(chat_tokenizer):
    chat_tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"prompts\[0\]: the chat template raised .*roles must alternate.*\['user'\]"):
        build(CHATS, chat_tokenizer)


def test_messages_name_the_option_the_prompts_belong_to(char_tokenizer):
    with pytest.raises(DataError, match=r"eval_prompts\[0\]"):
        build_prompts([3], char_tokenizer, PLAIN, max_length=0, what="eval_prompts")
