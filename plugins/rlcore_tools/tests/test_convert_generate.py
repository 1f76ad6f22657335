"""Tests of what `rlcore convert` and a configuration do with options of `generate`."""

from __future__ import annotations

from pathlib import Path

import pytest
from converted_options import options_of

from rlcore.cli import main
from rlcore_tools.conversion.trl_arguments import convert_trl


def test_options_of_generate_become_options_of_gen_and_of_the_sampler_and_beams_are_refused() -> None:
    given = {"min_p": 0.1, "repetition_penalty": 1.0, "num_generations": 4, "generation_kwargs": {
        "top_k": 3, "repetition_penalty": 1.2, "do_sample": True, "num_beams": 4, "typical_p": 0.5,
    }}  # fmt: skip
    conversion = convert_trl(given, "grpo", options_of("grpo"))
    assert conversion.values["sampler"] == {"name": "default", "min_p": 0.1, "repetition_penalty": 1.2}
    assert conversion.values["gen"]["top_k"] == 3
    beams, typical = conversion.left
    assert beams.startswith("generation_kwargs.num_beams = 4: the sequences of a beam search are no samples of the")
    assert typical == "generation_kwargs.typical_p = 0.5: gen has no such option"


def test_tokens_that_generate_suppresses_or_favours_become_options_of_the_sampler() -> None:
    given = {"suppress_tokens": [3, 4], "bad_words_ids": [[7]], "sequence_bias": [[[5], -2.0], [[6], 1.5]]}
    conversion = convert_trl({"generation_kwargs": given}, "grpo", options_of("grpo"))
    assert conversion.values["sampler"] == {
        "name": "default", "forbidden_tokens": [3, 4, 7], "logit_bias": [[5, -2.0], [6, 1.5]],
    }  # fmt: skip
    assert not conversion.left
    words = {"bad_words_ids": [[7], [8, 9]], "sequence_bias": {(1, 2): 4.0}}
    conversion = convert_trl({"generation_kwargs": words}, "grpo", options_of("grpo"))
    assert "sampler" not in conversion.values
    assert [each.rpartition(": ")[2] for each in conversion.left] == [
        f"{several} has 2 tokens, and options are about one" for several in ([8, 9], [1, 2])
    ]


@pytest.mark.parametrize(("name", "said"), [
    ("num_beams", "the sequences of a beam search are no samples of the policy"),
    ("beam", "the sequences of a beam search are no samples of the policy"),
    ("suppress_tokens", "use sampler.forbidden_tokens"),
])  # fmt: skip
def test_arguments_of_generate_in_a_configuration_are_answered(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: x}}\ntrainer: {{name: sft}}\ndata: {{samples: [a b]}}\ngen: {{{name}: 4}}\n")
    assert main(["train", str(file)]) != 0
    assert f"gen.{name}: no such option; {said}" in capsys.readouterr().err
