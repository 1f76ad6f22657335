"""Tests of which trainer `rlcore convert` selects for TRL's arguments, and of what it converts for that trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted_options import flat, options_of

from rlcore.cli import main
from rlcore.config import load_yaml
from rlcore_tools.conversion.trl_arguments import convert_trl


@pytest.mark.parametrize(
    ("trainer", "wanted", "left"),
    [
        ("sft", {"model.neftune_alpha": 5.0, "model.compile": "inductor", "model.liger_kernel": True}, 0),
        ("dpo", {"model.neftune_alpha": 5.0, "trainer.dropout": True, "model.compile": "inductor"}, 0),
        ("grpo", {"model.compile": "inductor", "model.neftune_alpha": "absent"}, 1),
        ("reward", {"model.compile": "absent", "model.neftune_alpha": "absent"}, 3),
    ],
)
def test_noise_compilation_and_kernels_are_converted_where_the_trainer_takes_them(
    trainer: str, wanted: dict[str, Any], left: int
) -> None:
    given = {"neftune_noise_alpha": 5.0, "torch_compile": True, "use_liger_kernel": True}
    conversion = convert_trl(given, trainer, options_of(trainer))
    found = flat(conversion.values)
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    assert len(conversion.left) == left


@pytest.mark.parametrize("loss", ["aot", "aot_unpaired"])
def test_losses_that_there_are_not_are_named_with_the_reason(loss: str) -> None:
    [line] = convert_trl({"loss_type": loss}, "dpo", options_of("dpo")).left
    assert line.startswith(f"loss_type = {loss}: it compares the sorted scores of a batch")


@pytest.mark.parametrize(
    ("argument", "trainer"),
    [("loss_type: [sigmoid, sft]", "dpo"), ("loss_type: dr_grpo", "grpo"), ("loss_type: dft", "sft"),
     ("rpo_alpha: 1.0", "dpo"), ("reward_clip_range: [0, 1]", "grpo"), ("undesirable_weight: 1.5", "dpo")],
)  # fmt: skip
def test_an_argument_that_only_one_trainer_has_selects_that_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture, argument: str, trainer: str
) -> None:
    (tmp_path / "any.yaml").write_text(f"beta: 0.1\n{argument}\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "any.yaml")]) == 0
    assert f"name: {trainer}" in capsys.readouterr().out


RLOO = {"trainer.name": "grpo", "trainer.preset": "rloo", "trainer.level": "product",
        "trainer.norm": "sequence", "trainer.num_generations": 2,
        "trainer.kl_coef": 0.05, "gen.max_new_tokens": 512, "trainer.optimizer.lr": 1e-6}  # fmt: skip
KTO = {"trainer.name": "dpo", "trainer.loss": "kto", "trainer.beta": 0.1, "trainer.optimizer.lr": 1e-6,
       "data.max_sample_tokens": 1024}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "trainer", "wanted"),
    [
        ({}, "rloo", RLOO),
        (
            {"beta": 0.1, "normalize_advantages": True},
            "RLOOTrainer",
            RLOO | {"trainer.kl_coef": 0.1, "trainer.scale": "batch"},
        ),
        ({}, "kto", KTO),
        ({"desirable_weight": 1.5}, None, KTO | {"trainer.desirable_weight": 1.5}),
        ({"loss_type": ["sigmoid_norm", "sft"]}, "dpo", {"trainer.loss.sigmoid_norm": 1.0, "trainer.loss.sft": 1.0}),
        (
            {"loss_type": ["sigmoid", "bco_pair"], "loss_weights": [0.8, 0.2]},
            "dpo",
            {"trainer.loss.sigmoid": 0.8, "trainer.loss.bco": 0.2},
        ),
    ],
)
def test_rloo_kto_and_sums_of_losses_are_converted(
    tmp_path: Path, arguments: dict[str, Any], trainer: str | None, wanted: dict[str, Any]
) -> None:
    """The defaults are those of TRL 1.16's `RLOOConfig` and `KTOConfig`."""
    (tmp_path / "any.json").write_text(json.dumps(arguments), encoding="utf-8")
    words = ["convert", str(tmp_path / "any.json"), "--out", str(tmp_path / "run.yaml")]
    assert main([*words, *([] if trainer is None else ["--trainer", trainer])]) == 0
    found = flat(load_yaml(tmp_path / "run.yaml"))
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    assert "loss_weights" not in (tmp_path / "run.yaml").read_text()


def test_the_trainer_must_be_named_where_arguments_fit_several(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.yaml").write_text("learning_rate: 1.0e-5\nmodel_name_or_path: gpt2\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "any.yaml")])
    said = "fits several trainers: name one with --trainer (cpo, distill_prompts, distillation, dpo, gkd, grpo, "
    said += "kto, online_dpo, orpo, ppo, reward, rloo, sft)"
    assert said in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "any.yaml"), "--trainer", "dpo"]) == 0
    assert "name: dpo" in capsys.readouterr().out
