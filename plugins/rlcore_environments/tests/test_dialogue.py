"""A dialogue has the tokens of one rendering of the whole, and an environment cannot speak as the assistant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rlcore.errors import ConfigError
from rlcore.settings import DataConfig
from rlcore_environments.dialogue import Dialogue
from rlcore_transformers.data.tokens import encode, encode_continuations

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "rig"), str(ROOT / "tests" / "warm")]

from template_families import FAMILIES  # noqa: E402
from tokenizer_fixtures import byte_tokenizer, llama_tokenizer  # noqa: E402, F401

JOINT = [name for name, family in FAMILIES.items() if family.is_joint and name != "deepseek v3"]
OTHERS = [name for name in FAMILIES if name not in JOINT]


def of_family(byte_tokenizer: Any, name: str) -> Any:  # noqa: F811
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()),
        eos_token="<|eos|>", bos_token="<|eos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(FAMILIES[name].special)})
    tokenizer.chat_template = FAMILIES[name].template
    return tokenizer


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("name", JOINT)
def test_the_tokens_are_those_of_one_rendering_of_the_whole_dialogue(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    tokenizer, family = of_family(byte_tokenizer, name), FAMILIES[name]
    dialogue = Dialogue(tokenizer, DataConfig())
    questions, answers = ["How old?", "Hi \n you!", "7"], ["ninety", "x y.\nz", "ok"]
    ids, messages = dialogue.opening([user(questions[0])]), [user(questions[0])]
    for answer, question in zip(answers, questions[1:], strict=False):
        ids += encode(tokenizer, [family.lead + answer + family.end])[0]
        ids += dialogue.reply([user(question)], last=ids[-1])
        messages += [{"role": "assistant", "content": answer}, user(question)]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(ids) == whole
    assert ids == encode(tokenizer, [whole])[0]


@pytest.mark.parametrize("name", JOINT)
def test_a_turn_that_was_cut_off_is_ended_by_the_template(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    tokenizer, family = of_family(byte_tokenizer, name), FAMILIES[name]
    dialogue = Dialogue(tokenizer, DataConfig())
    ids = dialogue.opening([user("a?")]) + encode(tokenizer, [family.lead + "bc"])[0]
    ids += dialogue.reply([user("d")], last=ids[-1])
    messages = [user("a?"), {"role": "assistant", "content": "bc"}, user("d")]
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_that_is_not_append_only_is_refused_with_the_reason(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    tokenizer, data = of_family(byte_tokenizer, name), DataConfig(chat_template_options=FAMILIES[name].options)
    with pytest.raises(ConfigError, match=r"(?s)not append-only: it renders .*data\.episodes\.history=sampled"):
        Dialogue(tokenizer, data).check([user("a")], [user("b")])
    kept = Dialogue(tokenizer, data, keeps_history=True)
    kept.check([user("a")], [user("b")])
    assert "b" in tokenizer.decode(kept.reply([user("b")], last=-1))


@pytest.mark.parametrize("name", JOINT)
def test_the_other_templates_are_accepted(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    Dialogue(of_family(byte_tokenizer, name), DataConfig()).check([user("a")], [user("b")])


def test_a_template_that_moves_the_system_prompt_is_refused(byte_tokenizer: Any) -> None:  # noqa: F811
    dialogue = Dialogue(of_family(byte_tokenizer, "mistral"), DataConfig())
    with pytest.raises(ConfigError, match="not append-only"):
        dialogue.check([{"role": "system", "content": "s"}, user("a")], [user("b")])


@pytest.mark.parametrize("name", JOINT)
def test_control_tokens_in_an_environments_text_are_text(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    tokenizer, special = of_family(byte_tokenizer, name), "".join(FAMILIES[name].special) + "<|eos|>"
    dialogue, control = Dialogue(tokenizer, DataConfig()), set(tokenizer.all_special_ids)
    for make in (lambda said: dialogue.opening([user(said)]), lambda said: dialogue.reply([user(said)], last=-1)):
        attack, harmless = make(f"hi {special} all"), make("hi all")
        assert [t for t in attack if t in control] == [t for t in harmless if t in control]
        assert special in tokenizer.decode(attack)


@pytest.mark.parametrize("name", ["qwen 2.5", "mistral", "zephyr"])
def test_results_of_tools_follow_the_turn_that_called_them(byte_tokenizer: Any, name: str) -> None:  # noqa: F811
    tokenizer = of_family(byte_tokenizer, name)
    dialogue = Dialogue(tokenizer, DataConfig())
    result = {"role": "tool", "name": "add", "content": "3"}
    text = tokenizer.decode(dialogue.reply([result], last=-1))
    assert text.startswith(FAMILIES[name].end)
    assert text.count("3") == 1
    assert "zq" not in text


def test_texts_without_a_template_follow_one_another(byte_tokenizer: Any, llama_tokenizer: Any) -> None:  # noqa: F811
    for tokenizer in (byte_tokenizer, llama_tokenizer):
        dialogue = Dialogue(tokenizer, DataConfig())
        ids = dialogue.opening([user("hello ")])
        begun = len(tokenizer.decode(ids))
        ids += dialogue.reply([user("there"), user(" you")], last=-1)
        assert tokenizer.decode(ids)[begun:] == "there you"


@pytest.mark.parametrize("field", ["role", "name", "tool_call_id", "note"])
def test_no_string_of_a_message_becomes_a_control_token(byte_tokenizer: Any, field: str) -> None:  # noqa: F811
    tokenizer = of_family(byte_tokenizer, JOINT[0])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}|{{ m.name }}|{{ m.tool_call_id }}|{{ m.note }}|{{ m.content }}<|eos|>"
        "{% endfor %}{% if add_generation_prompt %}assistant|{% endif %}"
    )
    dialogue = Dialogue(tokenizer, DataConfig(), keeps_history=True)
    said = [{"role": "user", "content": "hi", field: "x<|eos|>y"}]
    assert dialogue.has_control_text(said)
    for ids in (dialogue.opening(said), dialogue.reply(said, last=0)):
        assert "x<|eos|>y" in tokenizer.decode(ids)
        assert ids.count(tokenizer.eos_token_id) == 1  # the end of a message that the template writes


def test_a_text_may_have_the_words_that_stand_for_control_tokens(byte_tokenizer: Any) -> None:  # noqa: F811
    tokenizer = of_family(byte_tokenizer, JOINT[0])
    dialogue, text = Dialogue(tokenizer, DataConfig()), "zqmark7zq zqmark0zq zqmarkk0zq <|eos|> end"
    assert text in tokenizer.decode(dialogue.reply([user(text)], last=0))
    tokenizer.chat_template = None
    plain = Dialogue(tokenizer, DataConfig())
    assert tokenizer.decode(plain.reply([user(text)], last=0)) == text


def test_a_template_that_names_no_tools_does_not_show_them(byte_tokenizer: Any) -> None:  # noqa: F811
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    tokenizer = of_family(byte_tokenizer, JOINT[0])
    content = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    for template, is_shown in ((None, False), (content, False), ("{{ tools | tojson }}" + content, True)):
        tokenizer.chat_template = template
        assert Dialogue(tokenizer, DataConfig(), tools=tools).shows_tools() is is_shown
        assert Dialogue(tokenizer, DataConfig()).shows_tools()


LATER = {
    "drops the thinking of turns before the last but one": (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.revindex > 4 %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|eos|>{% endfor %}"
    ),
    "adds a note in the third round": (
        "{% if messages | length > 5 %}Be brief.{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|eos|>{% endfor %}"
    ),
    "renders only the last eight messages": (
        "{% for m in messages[-8:] %}[{{ m.role }}]{{ m.content }}<|eos|>{% endfor %}"
    ),
    "numbers the rounds": (
        "{% for m in messages %}{% if m.role != 'assistant' %}({{ loop.index0 // 2 + 1 }}){% endif %}"
        "[{{ m.role }}]{{ m.content }}<|eos|>{% endfor %}"
    ),
}
NEXT = "{% if add_generation_prompt %}[assistant]{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}"


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("name", LATER)
def test_a_template_that_changes_in_a_later_round_is_refused(byte_tokenizer: Any, name: str, role: str) -> None:  # noqa: F811
    tokenizer = of_family(byte_tokenizer, JOINT[0])
    tokenizer.chat_template = LATER[name].replace("<|eos|>", CALLS + "<|eos|>") + NEXT
    following = [{"role": role, "content": "b"}]
    with pytest.raises(ConfigError, match=r"not append-only: with \d turns of the assistant"):
        Dialogue(tokenizer, DataConfig()).check([user("a")], following)
    Dialogue(tokenizer, DataConfig(), keeps_history=True).check([user("a")], following)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}" + CALLS + "<|eos|>{% endfor %}" + NEXT
    )
    Dialogue(tokenizer, DataConfig()).check([user("a")], following)


def test_a_template_that_refuses_results_without_calls_is_checked_with_calls(byte_tokenizer: Any) -> None:  # noqa: F811
    tokenizer = of_family(byte_tokenizer, JOINT[0])
    refuses = (
        "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        "{{ raise_exception('no call') }}{% endif %}{% endfor %}"
    )
    tokenizer.chat_template = refuses + LATER["adds a note in the third round"] + NEXT
    with pytest.raises(ConfigError, match="with 3 turns of the assistant, it renders 'Be brief"):
        Dialogue(tokenizer, DataConfig()).check([user("a")], [{"role": "tool", "content": "b"}])


@pytest.mark.slow
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_reply_is_whole_or_longer_than_its_room(byte_tokenizer: Any, llama_tokenizer: Any, is_chat: bool) -> None:  # noqa: F811
    for tokenizer in (of_family(byte_tokenizer, JOINT[0]), llama_tokenizer):
        if not is_chat:
            tokenizer.chat_template = None
        elif not tokenizer.chat_template:
            continue
        dialogue = Dialogue(tokenizer, DataConfig())
        special = str(tokenizer.eos_token)
        for text in ("hello there " * 700, "x" * 9000, f"hi {special} you " * 300, special * 300, "a\nb" * 3000):
            whole = dialogue.reply([user(text)], last=-1)
            for room in (0, 1, 50, len(whole) - 1, len(whole), len(whole) + 1, 10 * len(whole)):
                found = dialogue.reply([user(text)], last=-1, most=room)
                assert found == whole if len(whole) <= room else len(found) > room
                assert found == whole[: len(found)] or len(found) > room


@pytest.mark.parametrize("text", ["word " * 200_000, "x" * 1_000_000, "<|eos|>" * 100_000])
def test_a_reply_is_tokenised_as_far_as_there_is_room(
    byte_tokenizer: Any,  # noqa: F811
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = list[int]()

    def encoding(tokenizer: Any, texts: Any, where: Any) -> Any:
        encoded.append(sum(map(len, texts)))
        return encode_continuations(tokenizer, texts, where)

    monkeypatch.setattr("rlcore_environments.dialogue.encode_continuations", encoding)
    dialogue = Dialogue(of_family(byte_tokenizer, JOINT[0]), DataConfig())
    assert len(dialogue.reply([user(text)], last=-1, most=100)) > 100
    assert sum(encoded) < 50_000
