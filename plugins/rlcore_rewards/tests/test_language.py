"""Tests of the reward language."""

from __future__ import annotations

import pytest

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards import build_reward
from rlcore_rewards.config import LanguageConfig
from rlcore_rewards.language import Language

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


def test_a_text_that_is_no_unicode_has_a_language_too() -> None:
    reward = build_reward("language", language="de", among=["de", "en"])
    assert reward(outputs=["Das ist ein deutscher Satz. \ud800"]) == [1.0]
