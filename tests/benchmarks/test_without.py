"""What is taken away is there, and every technique that can be taken away is measured."""

from __future__ import annotations

from pathlib import Path

import case_techniques
import pytest
import torch
import without


@pytest.mark.parametrize("technique", without.TECHNIQUES)
def test_something_stands_where_the_technique_is_taken_away(technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []

    def replace(owner: object, name: str, stand_in: object) -> None:
        replaced.append(getattr(owner, name) is not stand_in)
        monkeypatch.setattr(owner, name, stand_in)

    monkeypatch.setattr(without, "replace", replace)
    without.TECHNIQUES[technique]()
    assert replaced
    assert all(replaced)


def test_what_is_not_there_cannot_be_taken_away() -> None:
    with pytest.raises(AttributeError):
        without.replace(without, "perpetual_motion", None)


def test_multinomial_draws_say_the_log_probs_of_what_they_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlcore.sampling import next_token

    monkeypatch.setattr(next_token, "draw", next_token.draw)
    without.inverted_distribution()
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 0.0]])
    tokens, logprobs = next_token.draw(logits, torch.zeros(2, dtype=torch.float64))
    for row, token, logprob in zip(logits, tokens, logprobs, strict=True):
        assert logprob == pytest.approx(float(row[token] - row.exp().sum().log()))


def test_each_technique_is_measured(tmp_path: Path) -> None:
    duels = case_techniques.duels(tmp_path, quick=True)
    taken = [one.theirs[1] for one in duels if one.theirs and one.theirs[0] == "without.py"]
    assert sorted(taken) == sorted(without.TECHNIQUES)
