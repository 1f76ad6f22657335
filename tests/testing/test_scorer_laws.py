"""Every law of scorers is broken by one that is wrong in just that, and kept by the built-in one."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.cases import cases
from rlcore_testing.law import laws_in
from rlcore_testing.laws import scorers

LOADS, PADDING = "loading_restores_everything", "padding_changes_nothing"
WRONG = [
    Wrong("one_number_for_each_sequence", "Constant", "different sequences should get different scores; all get 0.0"),
    Wrong(PADDING, "EndOfRow", "scores of sequences padded on left with token 30 (pad is EOS: False) should be"),
    Wrong("plain_transformers_gives_the_same_scores", "PadsWithEos", "scores of plain transformers (GPT2For"),
    Wrong("every_trainable_parameter_gets_a_gradient", "HeadUnused", "got none; use it"),
    Wrong("score_goes_through_forward", "OwnModule", "it called []"),
    Wrong(LOADS, "HeadLost", "scores after load_pretrained should be"),
    Wrong(LOADS, "LoadsUnnoticed", "version should rise with load_pretrained; it stays 0"),
    Wrong("an_exported_folder_can_be_trained_again", "HeadAnew", "scores of a scorer built from its export should be"),
    Wrong("moving_moves_everything", "Stays", "everything should move; model.transformer.wte.weight"),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_scorer_breaks_the_law(case: Wrong) -> None:
    assert_broken(scorers, case, wrong("architectures", f"scores-{case.who}"))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(scorers, WRONG)


@pytest.mark.parametrize("options", [{}, {"peft": {"type": "lora", "r": 2}}], ids=["whole", "lora"])
@pytest.mark.parametrize("law", laws_in(scorers), ids=law_name)
def test_the_built_in_scorer_keeps_the_law(law: Law, options: dict[str, object]) -> None:
    assert_kept(law, installed("architectures", "rlcore:sequence_scorer", **options))


def test_a_scorer_is_held_to_the_laws_of_scorers_alone() -> None:
    names = {
        case.law.name for case in cases("rlcore-transformers") if case.id.startswith("architecture-sequence_scorer-")
    }
    assert {law.name for law in laws_in(scorers)} <= names
    assert "decoding_equals_scoring" not in names
