"""Tests of tokenizer loading: every form gives the same tokenizer, and options are applied or refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rlcore.config import load_yaml
from rlcore.data.text import decode
from rlcore.errors import ConfigError, ModelError
from rlcore_testing.small import EOS, LETTERS, PAD, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, TokenizerConfig
from rlcore_transformers.models.tokenizers import load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer().save_pretrained(tmp_path / "its")
    return tmp_path / "its"


def test_a_mapping_with_only_a_path_loads_the_tokenizer_of_that_folder(folder: Path) -> None:
    for given in (folder, str(folder), {"path": str(folder)}, {"path": folder}, TokenizerConfig(path=str(folder))):
        tokenizer = load_tokenizer("no-model", given)
        assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS, PAD)
        assert (tokenizer.padding_side, tokenizer.truncation_side) == ("right", "right")


def test_without_a_path_the_tokenizer_is_that_of_the_model(folder: Path) -> None:
    make_gpt2().save_pretrained(folder)
    policy = build_causal_lm(folder, CausalLMConfig(), tokenizer={"padding_side": "left", "truncation_side": "left"})
    assert (policy.tokenizer.padding_side, policy.tokenizer.truncation_side) == ("left", "left")
    assert policy.tokenizer("ab").input_ids == [0, 1]
    with pytest.raises(ModelError, match="a GPT2LMHeadModel comes without a tokenizer"):
        load_tokenizer(make_gpt2(), {"padding_side": "left"})


def test_special_tokens_can_be_replaced_by_options(folder: Path) -> None:
    tokenizer = load_tokenizer("x", {"path": folder, "eos_token": "!", "pad_token": "?", "bos_token": "."})
    ids = (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id)
    assert ids == tuple(LETTERS.index(letter) for letter in "!?.")
    assert len(tokenizer) == 32
    assert tokenizer("ab").input_ids == [0, 1]
    more = load_tokenizer("x", {"path": folder, "bos_token": ".", "add_bos_token": True})
    assert more("ab").input_ids == [LETTERS.index("."), 0, 1]


def test_further_special_tokens_are_never_split(folder: Path) -> None:
    tokenizer = load_tokenizer("x", {"path": folder, "extra_special_tokens": ["<end>", "b"]})
    assert {"<end>", "b"} <= set(tokenizer.all_special_tokens)
    assert tokenizer("a<end>").input_ids == [0, 32]
    with pytest.raises(ModelError, match="the tokenizer has 33 tokens, the model 32"):
        build_causal_lm(
            make_gpt2(), CausalLMConfig(), tokenizer={"path": folder, "extra_special_tokens": ["<end>"]}
        )  # fmt: skip


def test_a_chat_template_is_text_or_a_file(folder: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    (tmp_path / "talk.jinja").write_text(template)
    for given in (template, str(tmp_path / "talk.jinja")):
        tokenizer = load_tokenizer("x", {"path": folder, "chat_template": given})
        said = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
        assert said == "ab!"
    with pytest.raises(ModelError, match=r"chat_template = '/no/such.jinja': cannot be read"):
        load_tokenizer("x", {"path": folder, "chat_template": "/no/such.jinja"})


def test_further_options_are_passed_to_the_tokenizer_class(folder: Path) -> None:
    tokenizer = load_tokenizer("x", {"path": folder, "model_max_length": 9, "options": {"split_special_tokens": True}})
    assert tokenizer.model_max_length == 9
    assert tokenizer.split_special_tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paddingside": "left"}, r"model.tokenizer.paddingside: no such option; did you mean 'padding_side'"),
        ({"padding_side": "middle"}, r"model.tokenizer.padding_side = 'middle': must be .*'left', 'right'"),
        ({"pad_token": 31}, r"model.tokenizer.pad_token = 31: must be text"),
        ({"use_fast": "no"}, r"model.tokenizer.use_fast = 'no': must be true or false"),
        ({"model_max_length": 0}, r"model.tokenizer.model_max_length = 0: must be at least 1"),
    ],
)
def test_a_tokenizer_option_without_effect_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tokenizer("x", {"path": str(folder), **options})


def test_an_object_that_is_no_tokenizer_is_an_error(folder: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer = 3: give a tokenizer, a folder or hub id, or a mapping"):
        load_tokenizer("x", 3)
    with pytest.raises(ModelError, match=r"path: is a .* already; change its attributes and pass it without"):
        load_tokenizer("x", {"path": make_tokenizer(), "padding_side": "left"})
    with pytest.raises(ModelError, match="there is no such folder"):
        load_tokenizer("x", {"path": str(folder / "gone")})


def test_a_slow_tokenizer_causes_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_tokenizer("x", {"path": folder, "use_fast": True}).is_fast
    assert "use_fast" not in capsys.readouterr().err
    load_tokenizer("x", {"path": folder, "use_fast": False})
    assert "use_fast: transformers has no such tokenizer of this kind" in capsys.readouterr().err


def test_tokenizer_options_may_be_set_in_yaml(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        f"model:\n  path: base\n  tokenizer: {{path: '{os.fspath(folder)}', pad_token: a, padding_side: left}}\n"
    )
    tokenizer = load_tokenizer("base", load_yaml(tmp_path / "run.yaml")["model"]["tokenizer"])
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("a", "left")


def test_a_tokenizer_of_the_backend_alone_decodes_a_batch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, loud = make_tokenizer(), Loud(tokenizer_object=make_tokenizer().backend_tokenizer, eos_token="</s>")
    monkeypatch.setattr(PreTrainedTokenizerFast, "_decode", lambda *_, **__: "one by one")
    assert decode(tokenizer, [[0, 1], [EOS], []], skip_special_tokens=True) == ["ab", "", ""]
    assert decode(tokenizer, [[0, EOS]], skip_special_tokens=False) == ["a</s>"]
    assert decode(loud, [[0, 1], [2]], skip_special_tokens=True) == ["ONE BY ONE"] * 2


class Loud(PreTrainedTokenizerFast):
    def _decode(self, *ids: Any, **options: Any) -> str:
        return str(super()._decode(*ids, **options)).upper()
