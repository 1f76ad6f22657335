"""Process reward models: what they learn, how they are saved, and the rewards that they give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast

import rlcore
from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.rewards import Rewards
from rlcore.types import Prompt
from rlcore_reward.config import ProcessRewardModelConfig, SequenceScorerConfig
from rlcore_reward.loss import combine_steps, step_loss
from rlcore_reward.process_trainer import stack_steps
from rlcore_reward.reward_model import ProcessRewardModel
from rlcore_reward.scorer import build_sequence_scorer
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer

LINE = 29  # the id of "?", which this tokenizer writes for a line break
ROWS = [
    {"prompt": f"{name}.", "completions": [f"{name} yes", f"{name} no"][::turn], "labels": [True, False][::turn]}
    for name, turn in (("ab", 1), ("go", -1), ("me", 1), ("up", -1), ("he", -1), ("if", 1))
]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of one token per character, in which a line break is a token of its own."""
    vocabulary = {"\n" if token == "?" else token: index for token, index in make_tokenizer().get_vocab().items()}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", unk_token="!")


def train(folder: Path, samples: Any = ROWS, model: Any = None, **changes: Any) -> rlcore.Result:
    run = {"root": str(folder), "steps": 20, **changes.pop("run", {})}
    options = {"name": "process_reward", "batch_size": 3, "optimizer": {"lr": 1e-2}, **changes.pop("trainer", {})}
    given = model or make_llama()
    return rlcore.train(given, trainer=options, samples=samples, tokenizer=tokenizer(), run=run, loggers=[], **changes)


def test_the_loss_is_the_cross_entropy_of_both_labels() -> None:
    logprobs = torch.tensor([[[0.25, 0.75], [0.9, 0.1]]], dtype=torch.float64).log()
    seen = step_loss(logprobs, torch.tensor([[True, False]]))
    assert seen.tolist() == [pytest.approx([-math.log(0.75), -math.log(0.9)])]


def test_scores_of_steps_are_combined_without_those_of_other_tokens() -> None:
    logprobs = torch.tensor([[-math.inf, 0.5, 0.8, 9.0], [0.9, 9.0, -math.inf, 9.0]], dtype=torch.float64)
    logprobs = torch.where(logprobs > 0, logprobs.log(), logprobs)
    ends = torch.tensor([[False, True, True, False], [True, False, False, False]])
    seen = {how: combine_steps(logprobs, ends, how=how).tolist() for how in ("min", "product", "last")}
    expected = {"min": [0.5, 0.9], "product": [0.4, 0.9], "last": [0.8, 0.9]}
    assert seen == {how: pytest.approx(values) for how, values in expected.items()}


@pytest.mark.parametrize("peft", [None, {"type": "lora", "r": 4}])
def test_held_out_steps_are_judged_and_the_saved_model_judges_alike(tmp_path: Path, peft: Any) -> None:
    """The label is that of the last token of the line break after a step; no other token is learned."""
    held_out = [{"prompt": "to.", "completions": ["to no", "to yes"], "labels": [False, True]}]
    model = {"path": make_llama(), **({"peft": peft} if peft else {})}
    result = train(tmp_path, model=model, eval_samples=held_out)
    assert result.metrics["eval/step/accuracy"] == 1
    assert result.metrics["eval/loss"] < 0.5
    batch = stack_steps(result.run.samples[:2])
    assert (batch.tokens[batch.action_mask] == LINE).all()
    assert batch["labels"][batch.action_mask].tolist() == [True, False, False, True]
    plain = AutoModelForTokenClassification.from_pretrained(result.run_dir / "model").eval()
    with torch.no_grad():
        seen = result.policy.logprobs(batch)
        for row in range(2):
            tokens = batch.tokens[row][batch.mask[row]]
            expected = plain(tokens[None]).logits[0].log_softmax(-1)
            torch.testing.assert_close(seen[row][batch.mask[row]], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("where", ["model", "run"])
def test_bf16_training_learns_from_all_rows(tmp_path: Path, where: str) -> None:
    make_llama().save_pretrained(tmp_path / "lm")
    model = {"path": str(tmp_path / "lm"), "dtype": "bfloat16" if where == "model" else "float32"}
    run = {"mixed_precision": "bf16"} if where == "run" else {}
    result = train(tmp_path, model=model, eval_samples=ROWS, run=run)
    assert result.metrics["eval/loss"] < 0.5 < math.log(2)


@pytest.mark.parametrize("combine", ["min", "product", "last"])
def test_an_answer_is_judged_line_by_line(tmp_path: Path, combine: str) -> None:
    folder = train(tmp_path).run_dir / "model"
    plain = AutoModelForTokenClassification.from_pretrained(folder).eval()
    own = tokenizer()

    def by_hand(text: str) -> float:
        tokens = torch.tensor(own(text, add_special_tokens=False).input_ids)
        with torch.no_grad():
            steps = plain(tokens[None]).logits[0].softmax(-1)[tokens == LINE, 1].tolist()
        return {"min": min(steps), "product": math.prod(steps), "last": steps[-1]}[combine]

    spec = {"fn": "process_reward_model", "path": str(folder), "combine": combine, "batch_size": 2}
    outputs = ["ab yes\nab no", "ab yes\n", "", "\n", "a" * 80]
    batch = Rewards.build(spec)([Prompt("ab.", ())] * 5, outputs, tokenizer=own, output_tokens=[[1]] * 5)
    (seen,) = batch.by_name.values()
    assert seen[:2] == pytest.approx([by_hand("ab.ab yes\nab no\n"), by_hand("ab.ab yes\n")], abs=1e-5)
    assert seen[2:] == [None, None, None]


def test_long_rows_and_rows_of_another_form_are_left_out_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, [*ROWS, {**ROWS[0], "prompt": "a" * 30}], trainer={"max_length": 40}, run={"steps": 1})
    assert "longer_than_max_length=1" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"all 6 rows are longer than trainer\.max_length = 3"):
        train(tmp_path, trainer={"max_length": 3})
    with pytest.raises(DataError, match=r"leave data\.sample_pipeline out, or set it to stepwise"):
        train(tmp_path, [["a", "b"]], data={"sample_pipeline": "samples"})


def test_rows_longer_than_the_context_are_left_out_or_cut_on_purpose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The context of this model is 64 tokens."""
    rows = [*ROWS, {**ROWS[0], "prompt": "a" * 70}, {**ROWS[0], "completions": ["a", "b" * 70]}]
    for limit, kept in ((0, 6), (80, 6), (64, 7)):
        given = rows if limit != 64 else [*ROWS, rows[-1]]
        result = train(tmp_path, given, data={"max_sample_tokens": limit}, run={"steps": 1, "name": f"r{limit}"})
        assert ("longer_than_max_length=2" in capsys.readouterr().err) == (kept == 6)
        assert result.metrics["progress/epoch"] == pytest.approx(3 / kept)


def test_a_folder_without_a_process_reward_model_is_refused(tmp_path: Path) -> None:
    build_sequence_scorer(make_gpt2(), SequenceScorerConfig(), tokenizer=make_tokenizer()).export(tmp_path / "rm")
    with pytest.raises(ModelError, match="is no process reward model"):
        ProcessRewardModel(ProcessRewardModelConfig(path=str(tmp_path / "rm")))
    with pytest.raises(ConfigError, match="name the hub id or folder of a process reward model"):
        Rewards.build("process_reward_model")
