"""Tests of chat templates that mark what the assistant generates."""

from __future__ import annotations

import pytest
from chat_turns import MARKED, TALK, assistant, dialogue, sampled_from, tokenise, tokenizer_for, user
from template_families import CHATML, FAMILIES

from rlcore.errors import DataError


def test_a_template_that_marks_generations_chooses_what_others_choose(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    messages = [*dialogue(2), user("why ?"), assistant("\nbecause")]
    for turns, first in (("joint", 0), ("joint", 2), ("each", 0), ("each", 2)):
        tokenizer.chat_template = CHATML
        plain = tokenise(tokenizer, messages, turns=turns, first=first)
        tokenizer.chat_template = MARKED
        assert tokenise(tokenizer, messages, turns=turns, first=first) == plain
    for (_, mask), i in zip(plain, (3, 5), strict=True):
        assert mask.index(True) == len(sampled_from(tokenizer, messages[:i]))


def test_a_template_that_leaves_calls_out_of_its_generations_is_refused(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    outside = MARKED.replace(
        "{% endgeneration %}", "{% endgeneration %}{{ m.tool_calls[0].function.name if m.tool_calls }}"
    )
    for template in (MARKED, outside):
        tokenizer.chat_template = template
        for content in ("", "I go", "I add them"):
            talk = [TALK[0], {**TALK[1], "content": content}, *TALK[2:]]
            for turns in ("joint", "each"):
                with pytest.raises(
                    DataError, match=r"row: message 1 \(assistant\): .* drops .*'add'.* of its 'tool_calls'"
                ):
                    tokenise(tokenizer, talk, turns=turns)
    tokenizer.chat_template = MARKED.replace("{{ m.content }}<|im_end|>{% end", "{{ m.tool_calls }}<|im_end|>{% end")
    with pytest.raises(DataError, match=r"row: message 3 \(assistant\): .* drops 'because \.' of its 'content'"):
        tokenise(tokenizer, TALK)
