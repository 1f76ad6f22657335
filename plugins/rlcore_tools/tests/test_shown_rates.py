"""Tests of the learning rates that `rlcore show` prints, with the rule behind them and its sources."""

from __future__ import annotations

import json

import pytest

from rlcore.cli import main

RULES = "Yang et al. 2022, arXiv:2203.03466; Kaplan et al. 2020, arXiv:2001.08361"
ADAPTERS = "Biderman et al. 2024, arXiv:2405.09673; Schulman et al. 2025, LoRA Without Regret"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("trainer", "rule", "source"),
    [
        ("dpo", "1e-06 * sqrt(2.8e+09 / N)", "Rafailov et al. 2023, arXiv:2305.18290, appendix B"),
        ("ilql", "5e-05 * sqrt(1.24e+08 / N)", "trlX, for GPT-2; Snell et al. 2022, arXiv:2206.11871, published code"),
        ("ppo", "1e-06 * sqrt(1e+09 / N)", "Touvron et al. 2023, arXiv:2307.09288"),
        ("grpo", "1e-06 * sqrt(7e+09 / N)", "Shao et al. 2024, arXiv:2402.03300, section 4.2"),
    ],
)
def test_a_rate_that_follows_the_model_is_shown_with_its_rule_and_the_sources(
    trainer: str, rule: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, trainer).splitlines()
    row = next(line for line in lines if line.startswith("optimizer.lr "))
    assert source in row
    assert " null " in row
    assert f"optimizer.lr = null, the default: {rule} for N parameters, frozen ones included, at most" in lines[-4]
    assert lines[-4].endswith("; 10 times as much with an adapter")
    assert lines[-1] == f"  sources: {RULES}; adapters: {ADAPTERS}"


def test_rates_of_dpo_are_shown_for_four_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    # 1e-6 * sqrt(2800 / 1.5) = 4.32e-5; sqrt(2800 / 124) = 4.75; sqrt(5.6) = 2.37; sqrt(.4) = .632
    weights, adapter = shown(capsys, "dpo").splitlines()[-3:-1]
    assert weights == "  weights: 4.3e-05 for 1.5e+06, 4.8e-06 for 1.24e+08, 2.4e-06 for 5e+08, 1e-06 for 7e+09"
    assert adapter == "  adapter: 0.00043 for 1.5e+06, 4.8e-05 for 1.24e+08, 2.4e-05 for 5e+08, 6.3e-06 for 7e+09"


def test_a_fixed_rate_is_shown_with_its_source_and_the_rule_for_null(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "rft").splitlines()
    assert "that of sft" in next(line for line in lines if line.startswith("optimizer.lr "))
    assert lines[-5] == "optimizer.lr = 5e-05, the default: for every model"
    assert lines[-4].startswith("optimizer.lr = null: 5e-05 * sqrt(1.1e+08 / N) for N parameters")
    assert "optimizer.lr = 1e-06, the default: for every model" in shown(capsys, "online_dpo").splitlines()


@pytest.mark.parametrize(
    ("trainer", "source"),
    [("sft", "default of transformers; Devlin et al. 2019, arXiv:1810.04805, appendix A.3"), ("rft", "chosen here")],
)
def test_imitation_has_a_source_and_a_rule_that_agree_with_its_fixed_rate(
    trainer: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, trainer).splitlines()
    assert source in next(line for line in lines if line.startswith("optimizer.lr "))
    assert lines[-5] == "optimizer.lr = 5e-05, the default: for every model"
    assert lines[-4].startswith("optimizer.lr = null: 5e-05 * sqrt(1.1e+08 / N) for N parameters")
    # 5e-5 * sqrt(110 / 1.5) = 4.28e-4; the rate is never below the published one
    assert lines[-3] == "  weights: 0.00043 for 1.5e+06, 5e-05 for 1.24e+08, 5e-05 for 5e+08, 5e-05 for 7e+09"


@pytest.mark.parametrize(
    ("trainer", "rate", "source"),
    [
        ("reward", "0.0001", "default of TRL 1.16 for reward models"),
        ("process_reward", "0.0001", "default of TRL 1.16 for reward models"),
        ("distill", "2e-05", "default of TRL 1.16 for generalised knowledge distillation"),
    ],
)
def test_rates_of_trl_have_it_as_their_source(
    trainer: str, rate: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, trainer).splitlines()
    assert source in next(line for line in lines if line.startswith("optimizer.lr "))
    assert lines[-5] == f"optimizer.lr = {rate}, the default: for every model"


def test_rates_are_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    (options,) = json.loads(shown(capsys, "ilql", "--json"))["shown"]
    (rate,) = options["learning_rates"]
    assert (rate["path"], rate["default"], rate["weights"]["1.24e+08"]) == ("optimizer.lr", None, 5e-5)
    (section,) = json.loads(shown(capsys, "gen", "--json"))["shown"]
    assert section["learning_rates"] == []
