from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlcore.errors import ConfigError, PluginError, RewardError
from rlcore_rewards import build_reward
from rlcore_rewards.config import (
    ExactMatchConfig,
    JsonSchemaConfig,
    LanguageConfig,
    LengthConfig,
    RegexConfig,
    RepetitionConfig,
)
from rlcore_rewards.exact_match import ExactMatch
from rlcore_rewards.json_schema import JsonSchema
from rlcore_rewards.language import Language
from rlcore_rewards.length import Length
from rlcore_rewards.parts import after, last_block
from rlcore_rewards.pattern import Regex
from rlcore_rewards.repetition import Repetition
from rlcore_rewards.tally import Tally

# --- exact_match ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "output", "answer", "reward"),
    [
        ({}, " 42\n", "42", 1.0),
        ({}, "42", 42, 1.0),  # a number of a column is compared as its text
        ({"strip": False}, " 42", "42", 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"ignore_case": True}, "STRASSE", "straße", 1.0),
        ({}, "a  b", "a b", 0.0),
        ({"squeeze": True}, "a \n b", "a b", 1.0),
        ({"squeeze": True, "strip": False}, "a\t b ", "a b", 0.0),
        ({"ignore_punctuation": True}, "It's so.", "Its so", 1.0),
        ({}, "e\u0301", "\u00e9", 1.0),  # NFC
        ({"unicode": "none"}, "e\u0301", "\u00e9", 0.0),
        ({}, "\uff11", "1", 0.0),
        ({"unicode": "NFKC"}, "\uff11", "1", 1.0),
        ({"after": "</think>"}, "7</think>8", "8", 1.0),
        ({"after": "</think>"}, "8", "8", 0.0),
        ({"extract": "#### *(.+)"}, "#### 3\n#### 4\n", "4", 1.0),
        ({"extract": "#### *(.+)"}, "4", "4", 0.0),
        ({}, "b", ["a", "b"], 1.0),
        ({}, "c", ["a", "b"], 0.0),
        ({}, "x", None, None),
    ],
)
def test_exact_match_compares_after_normalisation(
    options: dict[str, Any], output: str, answer: Any, reward: float | None
) -> None:
    assert ExactMatch(ExactMatchConfig(**options))(outputs=[output], answer=[answer]) == [reward]


def test_exact_match_reads_the_column_that_its_option_names() -> None:
    reward = ExactMatch(ExactMatchConfig(column="solution"))
    assert reward(outputs=["1", "2"], solution=["1", "1"]) == [1.0, 0.0]


def test_a_row_without_a_text_gets_no_reward_and_a_mapping_is_an_error() -> None:
    reward = ExactMatch(ExactMatchConfig())
    assert reward(outputs=["x", "x"], answer=[[], ["x"]]) == [None, 1.0]
    assert reward._tally.counts == {"outputs have nothing in the column 'answer' to compare with, and get no reward": 1}
    with pytest.raises(RewardError, match=r"sample 1, column 'answer': \{'text': \['x'\]\} is no text"):
        reward(outputs=["x", "x"], answer=["x", {"text": ["x"]}])


def test_the_part_that_exact_match_compares_is_one_group() -> None:
    with pytest.raises(ConfigError, match=r"exact_match\.extract = '\(a\)\(b\)': has 2 groups; put what is compared"):
        ExactMatch(ExactMatchConfig(extract="(a)(b)"))


# --- regex ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({"pattern": r"\d+"}, "a 12", 1.0),
        ({"pattern": r"\d+", "mode": "fullmatch"}, "a 12", 0.0),
        ({"pattern": r"\d+", "mode": "fullmatch"}, "12", 1.0),
        ({"pattern": r"\d+", "mode": "absent"}, "a 12", 0.0),
        ({"pattern": r"\d+", "mode": "absent"}, "a", 1.0),
        ({"pattern": "b", "mode": "count", "most": 4}, "abb", 0.5),
        ({"pattern": "b", "mode": "count", "most": 2}, "bbbbb", 1.0),
        ({"pattern": "B"}, "b", 0.0),
        ({"pattern": "B", "ignore_case": True}, "b", 1.0),
        ({"pattern": "^b$"}, "a\nb\nc", 0.0),
        ({"pattern": "^b$", "multiline": True}, "a\nb\nc", 1.0),
        ({"pattern": "a.b"}, "a\nb", 0.0),
        ({"pattern": "a.b", "dot_all": True}, "a\nb", 1.0),
        ({"pattern": "a", "after": "|"}, "a|b", 0.0),
    ],
)
def test_regex_searches(options: dict[str, Any], output: str, reward: float) -> None:
    assert Regex(RegexConfig(**options))([output]) == [reward]


def test_a_search_that_takes_too_long_gives_no_reward_and_is_counted(caplog: Any, capsys: Any) -> None:
    reward = Regex(RegexConfig(pattern=r"(a|aa|b?)+$", mode="fullmatch", timeout_s=0.05))
    assert reward(["a" * 60 + "!", "aa"]) == [None, 1.0]
    assert reward._tally.counts == {"searches took longer than regex.timeout_s = 0.05, and gave no reward": 1}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "regex.pattern is empty: set a regular expression"),
        ("(", r"regex.pattern = '(': is no regular expression: missing ) at position 1"),
        ("(?iau)x", "is no regular expression: ASCII, LOCALE and UNICODE flags are mutually incompatible"),
        ("(" * 3000 + ")" * 3000, "is no regular expression: maximum recursion depth exceeded"),
    ],
)
def test_an_invalid_pattern_is_named(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Regex(RegexConfig(pattern=pattern))
    assert str(raised.value).startswith("regex.pattern ")
    assert message in str(raised.value)


# --- json_schema ---------------------------------------------------------------------------------------------------

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({}, ' {"a": [1, null]}\n', 1.0),
        ({}, "null", 1.0),
        ({}, "{'a': 1}", 0.0),
        ({}, "[NaN]", 0.0),
        ({}, "", 0.0),
        ({}, "[" * 100_000, 0.0),
        ({"schema": PERSON}, '{"age": 3}', 1.0),
        ({"schema": PERSON}, '{"age": "3"}', 0.0),
        ({"schema": PERSON, "parsed": 0.25}, '{"age": "3"}', 0.25),
        ({"schema": PERSON, "parsed": 0.25}, "no", 0.0),
        ({"schema": PERSON}, 'Here: {"age": 3}', 0.0),
        ({"schema": PERSON, "find": "first"}, 'Here {it} is: {"age": 3}, and {"age": "4"}', 1.0),
        ({"schema": PERSON, "find": "fenced"}, '```json\n{"age": "x"}\n```\nor\n```\n{"age": 3}\n```\n', 1.0),
        ({"schema": PERSON, "find": "fenced"}, '{"age": 3}', 0.0),
        ({"schema": {"type": "string", "format": "ipv4"}}, '"1.2.3"', 1.0),
        ({"schema": {"type": "string", "format": "ipv4"}, "formats": True}, '"1.2.3"', 0.0),
    ],
)
def test_json_schema_parses_and_validates(options: dict[str, Any], output: str, reward: float) -> None:
    assert JsonSchema(JsonSchemaConfig(**options))(outputs=[output]) == [reward]


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(PERSON))
    reward = JsonSchema(JsonSchemaConfig(schema=str(tmp_path / "schema.json")))
    assert reward(outputs=['{"age": 3}', "{}"]) == [1.0, 0.0]


def test_each_prompt_may_have_its_schema() -> None:
    reward = JsonSchema(JsonSchemaConfig(column="form"))
    forms = [{"type": "integer"}, '{"type": "string"}', None, {"type": "integer"}]
    assert reward(outputs=["1", "1", "1", '"a"'], form=forms) == [1.0, 0.0, None, 0.0]


def test_invalid_schemas_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"json_schema\.schema: is no JSON schema: 'numbr' is not valid"):
        JsonSchema(JsonSchemaConfig(schema={"type": "numbr"}))
    with pytest.raises(
        ConfigError, match=r"json_schema\.schema = 'nowhere\.json': cannot be read as a file: .*No such"
    ):
        JsonSchema(JsonSchemaConfig(schema="nowhere.json"))
    (tmp_path / "schema.json").write_text("{")
    with pytest.raises(ConfigError, match="the file is no JSON: Expecting property name"):
        JsonSchema(JsonSchemaConfig(schema=str(tmp_path / "schema.json")))
    with pytest.raises(ConfigError, match=r"json_schema\.schema = 3: must be a mapping, or the path of a JSON file"):
        JsonSchema(JsonSchemaConfig(schema=3))
    with pytest.raises(ConfigError, match="are both set; leave one out"):
        JsonSchema(JsonSchemaConfig(schema={}, column="form"))
    with pytest.raises(RewardError, match="sample 0, column 'form': is no JSON schema: -1 is less than the minimum"):
        JsonSchema(JsonSchemaConfig(column="form"))(outputs=["1"], form=[{"minLength": -1}])
    with pytest.raises(RewardError, match="sample 1, column 'form': 'x' is no JSON; give a JSON schema"):
        JsonSchema(JsonSchemaConfig(column="form"))(outputs=["1", "1"], form=[{}, "x"])


@pytest.mark.parametrize(("number", "reward"), [("1e400", 0.0), ("[1e999]", 0.0), ("1" * 4000, 0.25), ("7", 1.0)])
def test_numbers_beyond_those_of_python_end_no_run(number: str, reward: float) -> None:
    schema = {"multipleOf": 0.5, "type": "number"}
    assert JsonSchema(JsonSchemaConfig(schema=schema, parsed=0.25))(outputs=[number]) == [reward]


@pytest.mark.parametrize("schema", [3, "3", "[1]", '"text"', "null"])
def test_a_column_with_other_json_than_a_schema_is_named(schema: Any) -> None:
    with pytest.raises(RewardError, match=r"sample 0, column 'shape': .* is no JSON schema"):
        JsonSchema(JsonSchemaConfig(column="shape"))(outputs=["1"], shape=[schema])


def test_references_are_not_loaded_from_the_network() -> None:
    reward = JsonSchema(JsonSchemaConfig(schema={"$ref": "http://127.0.0.1:9/schema.json"}))
    with pytest.raises(
        RewardError, match=r"the reference 'http://127.0.0.1:9/schema.json' leads nowhere in the schema"
    ):
        reward(outputs=["1"])
    inside = {"$defs": {"age": {"type": "integer"}}, "$ref": "#/$defs/age"}
    assert JsonSchema(JsonSchemaConfig(schema=inside))(outputs=["1", '"1"']) == [1.0, 0.0]


# --- length --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rewards"),
    [  # of outputs with 0, 2, 4, 6 and 8 characters
        ({"cap": 4}, [0, 0, 0, -1, -1]),
        ({"cap": 4, "slack": 4}, [0, 0, 0, -0.5, -1]),
        ({"cap": 2, "slack": 8}, [0, 0, -0.25, -0.5, -0.75]),
        ({"cap": 0, "slack": 4}, [0, -0.5, -1, -1, -1]),
        ({"target": 4}, [0, 0, 1, 0, 0]),
        ({"target": 4, "slack": 4}, [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_length_has_a_limit_or_a_target(options: dict[str, Any], rewards: list[float]) -> None:
    outputs = ["x" * k for k in (0, 2, 4, 6, 8)]
    assert Length(LengthConfig(unit="characters", **options))(outputs) == rewards


def test_length_counts_tokens_characters_or_words() -> None:
    outputs, tokens = ["two words"], [[5, 6, 0]]
    for unit, count in (("tokens", 3), ("characters", 9), ("words", 2)):
        assert Length(LengthConfig(unit=unit, target=count))(outputs, tokens) == [1.0]


def test_length_needs_a_limit_or_a_target_and_tokens() -> None:
    for options in ({}, {"cap": 1, "target": 1}):
        with pytest.raises(ConfigError, match=r"length\.cap = .*, length\.target = .*: set one of them"):
            Length(LengthConfig(**options))
    with pytest.raises(RewardError, match=r"length\.unit = 'tokens': these outputs come without tokens"):
        Length(LengthConfig(cap=1))(["a"])


# --- repetition ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({"n": 1}, "a b c", 0.0),
        ({"n": 1}, "a a a a", -0.75),  # 4 unigrams, 1 different
        ({"n": 2}, "a b a b a", -0.5),  # ab ba ab ba: 4 bigrams, 2 different
        ({"n": 2, "free": 0.25}, "a b a b a", -1 / 3),  # (.5 - .25) / .75
        ({"n": 2, "free": 0.5}, "a b a b a", 0.0),
        ({"n": 3}, "a a", 0.0),
        ({"n": 1}, "", 0.0),
        ({"n": 1}, "A a", -0.5),
        ({"n": 1, "ignore_case": False}, "A a", 0.0),
        ({"n": 2, "unit": "characters"}, "aaaaa", -0.75),
    ],
)
def test_repetition_is_the_share_of_repeated_ngrams(options: dict[str, Any], output: str, reward: float) -> None:
    assert Repetition(RepetitionConfig(**options))([output]) == [pytest.approx(reward)]


def test_repetition_counts_tokens_too() -> None:
    assert Repetition(RepetitionConfig(n=1, unit="tokens"))(["x", "y"], [[1, 1], [1, 2]]) == [-0.5, 0.0]


# --- language ------------------------------------------------------------------------------------------------------

GERMAN, ENGLISH = "Die Katze schläft heute auf dem Sofa.", "The cat is sleeping on the sofa today."


def test_language_is_the_most_likely_one() -> None:
    reward = Language(LanguageConfig(language="de", among=("en", "de")))
    assert reward(outputs=[GERMAN, ENGLISH, "", "42"]) == [1.0, 0.0, 0.0, 0.0]
    assert reward._tally.counts == {"outputs have no language that can be detected, and get 0.0": 2}
    other = Language(LanguageConfig(language="de", among=("en",), undecided=None))
    assert other(outputs=[GERMAN, "42"]) == [1.0, None]


def test_language_may_be_a_probability() -> None:
    (german,) = Language(LanguageConfig(language="de", among=("en",), report="confidence"))(outputs=[GERMAN])
    (english,) = Language(LanguageConfig(language="en", among=("de",), report="confidence"))(outputs=[GERMAN])
    assert german is not None
    assert english is not None
    assert german > 0.9
    assert german + english == pytest.approx(1.0, abs=2e-6)


def test_each_prompt_may_have_its_language() -> None:
    reward = Language(LanguageConfig(column="in_language", among=("en", "de")))
    assert reward(outputs=[GERMAN, GERMAN, GERMAN], in_language=["DE", "en", None]) == [1.0, 0.0, None]
    with pytest.raises(RewardError, match=r"sample 0, column 'in_language': 'fr' is none of the languages .*en, de"):
        reward(outputs=[GERMAN], in_language=["fr"])


def test_rows_without_a_language_are_counted_as_such() -> None:
    reward = Language(LanguageConfig(column="code", among=("en", "de")))
    assert reward(outputs=["7", "7"], code=[None, "de"]) == [None, 0.0]
    assert reward._tally.counts == {
        "outputs have no language that can be detected, and get 0.0": 1,
        "outputs have no code in the column 'code', and get no reward": 1,
    }


def test_languages_are_codes() -> None:
    with pytest.raises(ConfigError, match="'german' is not the ISO 639-1 code of a language that lingua detects"):
        Language(LanguageConfig(language="german"))
    with pytest.raises(ConfigError, match="set one of them, the code of the language or the column"):
        Language(LanguageConfig())
    with pytest.raises(ConfigError, match=r"language\.among = \['de'\]: name a second language to tell apart"):
        Language(LanguageConfig(language="de", among=("de",)))


# --- parts of outputs, counts and libraries ------------------------------------------------------------------------


def test_parts_of_outputs() -> None:
    assert after("a|b|c", "|") == "c"
    assert after("abc", "") == "abc"
    assert after("abc", "|") == ""
    assert last_block("x\n```python\na\nb\n```\ny\n```\nc\n```") == "c\n"
    assert last_block("```python\nnot closed") is None
    assert last_block("```a`b\nc\n ```\nd\n``` \t") == "d\n"  # a line with a further backtick opens none


def test_many_blocks_that_are_not_closed_are_read_in_linear_time() -> None:
    begin = time.process_time()
    assert last_block("```x\n" * 50_000) is None
    assert time.process_time() - begin < 2


def test_counts_are_logged_first_tenfold_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "rlcore_rewards.tally.log.warning", lambda what, **fields: logged.append((fields["count"], fields["of"]))
    )
    tally = Tally("any")
    for _ in range(12):
        tally.add(4, {"outputs are odd": 1})
    tally.add(4, {})
    assert logged == [(1, 4), (10, 40)]
    tally.close()
    tally.close()
    assert logged == [(1, 4), (10, 40), (12, 52)]


@pytest.mark.parametrize(
    ("module", "build", "message"),
    [
        ("jsonschema", lambda: JsonSchema(JsonSchemaConfig()), "reward 'json_schema' needs jsonschema, .*[json]"),
        (
            "lingua",
            lambda: Language(LanguageConfig(language="de")),
            "reward 'language' needs lingua, .*[language]",
        ),
    ],
)
def test_a_missing_library_names_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, module: str, build: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    before, _, extra = message.partition(".*")
    with pytest.raises(PluginError) as raised:
        build()
    assert str(raised.value).startswith(before)
    assert str(raised.value).endswith(f"pip install 'rlcore-rewards{extra}'")


def test_a_reward_is_built_by_its_name_outside_a_run() -> None:
    assert build_reward("regex", pattern="a")(outputs=["a", "b"]) == [1.0, 0.0]
    with pytest.raises(ConfigError) as raised:
        build_reward("regex", pattern=3)
    assert str(raised.value).startswith("regex.pattern = 3: must be text")
    with pytest.raises(
        ConfigError, match=r"no reward 'regx'; did you mean 'regex'\? It has math_accuracy, exact_match"
    ):
        build_reward("regx")


@pytest.mark.parametrize("name", ["exact_match", "math_accuracy", "code_tests"])
def test_a_reward_that_is_called_without_its_column_names_those_it_has(name: str) -> None:
    reward = build_reward(name)
    with pytest.raises(RewardError, match=rf"no prompt has the column '\w+' of {name}.column; they have 'answr'"):
        reward(outputs=["1"], answr=["1"])


def test_a_text_that_is_no_unicode_has_a_language_too() -> None:
    reward = build_reward("language", language="de", among=["de", "en"])
    assert reward(outputs=["Das ist ein deutscher Satz. \ud800"]) == [1.0]
