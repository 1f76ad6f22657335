from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore
from rlcore.cli import main
from rlcore.errors import DataError, InputsError
from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_report.page_data import page_data
from rlcore_report.run_record import read_run
from rlcore_tools.equal_rows import read_data
from rlcore_tools.shown_rows import plain_text, show_rows

SPECIAL = ["<eos>", "<user>", "<assistant>", "<end>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if m.role == 'user' or loop.last else m.content.split('!')[-1] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [
    {"role": "user", "content": "ab"}, {"role": "assistant", "content": "h!c"},
    {"role": "user", "content": "d"}, {"role": "assistant", "content": "g!e"},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of single characters and a configuration, and without weights."""
    folder = tmp_path_factory.mktemp("model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(words, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    GPT2Config(vocab_size=len(words), n_positions=64, n_embd=8, n_head=2, n_layer=1, eos_token_id=0).save_pretrained(
        folder
    )
    return folder


def preview(folder: Path, trainer: str = "sft", *, num_rows: int = 4, **data: Any) -> str:
    values = {"model": {"path": str(folder)}, "trainer": {"name": trainer}, "data": data}
    return plain_text(read_data(values, "x.yaml", num_rows=num_rows))


def test_trained_tokens_are_in_brackets_and_rows_have_their_lengths(folder: Path) -> None:
    said = preview(folder, samples=[["ab", "cd"], "xyz"], max_sample_tokens=4)
    lengths = "tokens: 4 to 4, median 4, 95 % have at most 4; the model's context has 64; 5 of 8 tokens are trained"
    assert f"{lengths}; truncated: 1 (1 by data.max_sample_tokens = 4)" in said
    assert "samples[0]\n2 of 4 tokens trained, truncated\na·b\n⟦c·d⟧\n" in said
    assert "samples[1]\n3 of 4 tokens trained\nx\n⟦y·z·<eos>⟧" in said


def test_a_conversation_shows_its_roles_its_prompt_and_what_is_dropped(folder: Path) -> None:
    said = preview(folder, samples=[TALK], turns="each")
    assert "samples[0] (user, assistant)\n" in said
    assert "<user>·a·b·<end>·⏎\n<assistant>\n⟦h·!·c·<end>⟧\n⏎\nsampled from the same 6 tokens" in said
    assert "<user>·a·b·<end>·⏎\n<assistant>·c·<end>·⏎\n<user>·d·<end>·⏎\n<assistant>\n⟦g·!·e·<end>⟧" in said
    assert said.count("not rendered: ") == 1
    assert "message 1 (assistant), 'content': h!c" in said.partition("samples[1]")[2]


def test_rows_that_a_run_refuses_are_refused_with_its_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): .*data.turns=each"):
        preview(folder, samples=[TALK])
    with pytest.raises(InputsError, match=r"x\.yaml: has no rows to show: set data\.samples or data\.prompts"):
        preview(folder)


def test_the_prompt_that_is_sampled_from_is_compared_with_the_row(folder: Path) -> None:
    assert "sampled from the same 2 tokens" in preview(folder, samples=[["ab", "cd"]])
    assert "sampled from the same 2 tokens" in preview(folder, samples=[["abc", "d"]], max_prompt_tokens=2)
    row = {"prompt": [TALK[0]], "completion": [{"role": "assistant", "content": "x"}]}
    assert "sampled from the same 6 tokens" in preview(folder, samples=[row])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer("axc")["input_ids"]
    other = Sample(tuple(ids), (False, False, True))
    said = plain_text([show_rows("samples", [other], [["ab", "c"]], tokenizer, DataConfig())])
    assert "a·x\n⟦c⟧\nsampled from other tokens than those before the first trained one:\na·b" in said


def test_preferences_prompts_and_verdicts_are_shown(folder: Path) -> None:
    said = preview(folder, "dpo", samples=[{"prompt": "ab", "chosen": "c", "rejected": "d ", "margin": 0.5}])
    assert "chosen, 2 of 4 tokens trained\na·b\n⟦c·<eos>⟧" in said
    assert "rejected, 3 of 5 tokens trained\na·b\n⟦d·␣·<eos>⟧" in said
    assert "margin: 0.5" in said
    said = preview(folder, prompts=["abc", {"prompt": [TALK[0]], "answer": 3}], max_prompt_tokens=6, samples=["ab"])
    assert "prompts[0]\n3 tokens\na·b·c" in said
    assert "prompts[1] (user)\n6 tokens\n<user>·a·b·<end>·⏎\n<assistant>\nanswer: 3" in said
    labelled = {"prompt": "ab", "completion": "c", "label": False}
    assert "label: False" in preview(folder, samples=[labelled], sample_pipeline="unpaired")
    steps = {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}
    said = preview(folder, samples=[steps], sample_pipeline="stepwise", append_eos=False)
    assert "⟦b·⏎\n(1)·c·⏎\n(0)⟧" in said


def test_the_command_prints_text_and_json_without_weights(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"model: {{path: {folder}}}\ntrainer: {{name: sft}}\ndata: {{samples: [ab, cd, ef]}}\n")
    assert not list(folder.glob("*.safetensors"))
    assert main(["preview", str(file), "--rows", "2"]) == 0
    said = capsys.readouterr().out
    assert "samples: 3 rows" in said
    assert "samples[1]" in said
    assert "samples[2]" not in said
    assert main(["preview", str(file), "data.append_eos=false", "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["lengths"]["longest"] == 2
    assert source["rows"][2]["sequences"][0]["texts"] == ["e", "f"]
    assert source["rows"][2]["sequences"][0]["trained"] == [False, True]


def test_a_run_logs_its_first_rows_and_adds_them_to_its_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tokenizer = GPT2Config.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for level in ("info", "debug"):
        monkeypatch.setenv("RLCORE_LOG_LEVEL", level)
        rlcore.train(
            config, tokenizer=tokenizer, trainer="sft", samples=[["ab", "cd"]] * 5, run={"steps": 1, "name": level,
            "root": str(tmp_path)}, loggers=[],
        )  # fmt: skip
        said = capsys.readouterr().err
        assert ("samples[2]" in said) == (level == "debug")
        assert "samples[3]" not in said
    (text,) = page_data([read_run(tmp_path / "info", is_running=False)])["runs"][0]["texts"]
    assert text["name"] == "first rows"
    assert "a·b\n⟦c·d·<eos>⟧" in text["text"]
