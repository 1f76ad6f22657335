from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

Make = Callable[..., Any]
TEXTS = ["hello there.", "ab", "what is it?", "q", "yes!"]
PAIRS = [["hello", " you."], ["ab", "c"], ["who? ", "me!", " why? ", "because."], ["", "alone"]]
IGNORED = -100


def make_sft(make: Make, model: PreTrainedModel, samples: list[Any], /, **changes: Any) -> Any:
    inputs = {"samples": samples} | changes.pop("inputs", {})
    sections = {"data": changes.pop("data", {}), "run": changes.pop("run", {}), "model": changes.pop("model", {})}
    if not sections["run"]:
        del sections["run"]
    options = {"batch_size": len(samples)} | changes
    return make("sft", model, tokenizer=options.pop("tokenizer", None), sections=sections, inputs=inputs, **options)


def labelled(words: PreTrainedTokenizerFast, samples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokenise, end and mask samples by hand: padded ids, attention mask, and labels in `transformers` format."""
    rows: list[tuple[list[int], list[int]]] = []
    for sample in samples:
        ids: list[int] = []
        labels: list[int] = []
        for k, text in enumerate([sample] if isinstance(sample, str) else sample):
            piece: list[int] = [words.get_vocab()[letter] for letter in text]
            learnt = isinstance(sample, str) or k % 2 == 1
            piece += [30] * learnt
            ids += piece
            labels += piece if learnt else [IGNORED] * len(piece)
        rows.append((ids, labels))
    width = max(len(ids) for ids, _ in rows)
    padded = torch.tensor([row + [31] * (width - len(row)) for row, _ in rows])
    masked = torch.tensor([row + [IGNORED] * (width - len(row)) for _, row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in rows])
    return padded, attention, masked


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("samples", [TEXTS, PAIRS], ids=["text", "pairs"])
def test_the_loss_and_its_gradient_are_those_of_transformers(
    make_trainer: Make,
    tiny_model: PreTrainedModel,
    char_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    samples: list[Any],
    packing: bool,
) -> None:
    plain = copy.deepcopy(tiny_model)
    ids, attention, labels = labelled(char_tokenizer, samples)
    expected = plain(input_ids=ids, attention_mask=attention, labels=labels).loss
    expected.backward()
    trainer = make_sft(make_trainer, tiny_model, samples, model={"speed": {"packing": packing}}, micro_batch_size=2)
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    metrics = next(trainer.steps())
    assert metrics["loss/total"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["data/tokens"] == (labels[:, 1:] != IGNORED).sum()
    for name, parameter in plain.named_parameters():
        got = trainer.policy().model.get_parameter(name).grad
        assert got is not None
        assert parameter.grad is not None
        assert torch.allclose(got, parameter.grad, atol=2e-6), name


def test_an_optimizer_step_of_sft_equals_one_of_adamw(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, char_tokenizer: PreTrainedTokenizerFast
) -> None:
    plain = copy.deepcopy(tiny_gpt2)
    adam = torch.optim.AdamW(plain.parameters(), lr=0.01, betas=(0.8, 0.9), eps=0.1, weight_decay=0.0)
    optimizer = {"lr": 0.01, "betas": [0.8, 0.9], "eps": 0.1, "weight_decay": 0.0, "max_grad_norm": 0.5}
    steps = make_sft(make_trainer, tiny_gpt2, PAIRS, optimizer=optimizer).steps()
    ids, attention, labels = labelled(char_tokenizer, PAIRS)
    for _ in range(3):
        adam.zero_grad()
        plain(input_ids=ids, attention_mask=attention, labels=labels).loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        adam.step()
        assert next(steps)["grad/norm"] == pytest.approx(float(norm), rel=1e-3)
    for name, parameter in plain.named_parameters():
        assert torch.allclose(tiny_gpt2.get_parameter(name), parameter, atol=1e-5), name


def test_eos_is_learned_and_the_loss_falls(
    make_trainer: Make, tiny_model: PreTrainedModel, either_tokenizer: PreTrainedTokenizerFast
) -> None:
    words = either_tokenizer
    samples = [["ab", "c"], ["hello", " you"], ["q", "uite long."]]
    trainer = make_sft(make_trainer, tiny_model, samples, tokenizer=words, optimizer={"lr": 0.02, "weight_decay": 0.0})
    steps = trainer.steps()
    losses = [next(steps)["loss/total"] for _ in range(60)]
    assert losses[0] > 3
    assert losses[-1] < 0.05
    for prompt, output in samples:
        ids = torch.tensor([[words.convert_tokens_to_ids(letter) for letter in prompt]])
        with torch.no_grad():
            for _ in range(len(output) + 1):
                ids = torch.cat([ids, trainer.policy().model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
        assert words.decode(ids[0], clean_up_tokenization_spaces=False) == prompt + output + "</s>"


def test_the_validation_loss_is_that_of_transformers_and_without_dropout(
    make_trainer: Make, tiny_model: PreTrainedModel, char_tokenizer: PreTrainedTokenizerFast
) -> None:
    plain = copy.deepcopy(tiny_model)
    for module in tiny_model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    held_out = [*TEXTS, "one more for a last batch of another size"]
    trainer = make_sft(
        make_trainer, tiny_model, PAIRS, batch_size=4, micro_batch_size=3, inputs={"eval_samples": held_out}
    )
    ids, attention, labels = labelled(char_tokenizer, held_out)
    with torch.no_grad():
        expected = plain(input_ids=ids, attention_mask=attention, labels=labels).loss.item()
    (evaluation,) = trainer.run.evaluations
    assert evaluation()["loss"] == pytest.approx(expected, rel=1e-5)
    assert evaluation()["loss"] == evaluation()["loss"]
    assert trainer.policy().module.training


def test_dropout_is_the_models_own_unless_it_is_turned_off(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    for module in tiny_gpt2.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    losses = {}
    for dropout in (True, False):
        trainer = make_sft(make_trainer, copy.deepcopy(tiny_gpt2), TEXTS, dropout=dropout, optimizer={"lr": 1e-12})
        steps = trainer.steps()
        losses[dropout] = [next(steps)["loss/total"] for _ in range(2)]
    assert losses[True][0] != pytest.approx(losses[True][1], rel=1e-3)
    assert losses[False][0] == pytest.approx(losses[False][1], rel=1e-5)


def test_every_sample_is_seen_once_a_pass_in_another_order_each_time(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    samples = ["a" * 2**k for k in range(5)]  # sums of their lengths identify the samples of a batch
    trainer = make_sft(make_trainer, tiny_gpt2, samples, batch_size=2, data={"append_eos": True})
    steps = trainer.steps()
    passes = []
    for number in range(4):
        metrics = [next(steps) for _ in range(3)]
        tokens = [int(m["data/tokens"]) for m in metrics]
        assert sum(tokens) == sum(2**k for k in range(5))
        assert metrics[-1]["progress/epoch"] == number + 1
        passes.append(tuple(tokens))
    assert len(set(passes)) > 1


def test_epochs_are_converted_to_steps(make_trainer: Make, tiny_gpt2: PreTrainedModel, tmp_path: Any) -> None:
    run = {"root": str(tmp_path / "epochs"), "epochs": 2.5}
    trainer = make_sft(make_trainer, tiny_gpt2, TEXTS, batch_size=2, run=run)
    assert trainer.run.total_steps == 8  # three steps per pass
    trainer = make_sft(make_trainer, tiny_gpt2, TEXTS, batch_size=2, run={**run, "steps": 5})
    assert trainer.run.total_steps == 5


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 64, "micro_batch_size": 7}], ids=str)
def test_sft_trains_with_batches_of_any_size(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, options: dict[str, Any]
) -> None:
    steps = make_sft(make_trainer, tiny_gpt2, PAIRS, **options).steps()
    assert all(0 < next(steps)["loss/total"] < 50 for _ in range(5))


def test_the_order_of_samples_is_restored_with_the_state(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    first = make_sft(make_trainer, copy.deepcopy(tiny_gpt2), TEXTS, batch_size=2)
    steps = first.steps()
    for _ in range(4):
        next(steps)
    second = make_sft(make_trainer, first.policy().model, TEXTS, batch_size=2)
    second.load_state_dict(first.state_dict())
    ours, theirs = next(steps), next(second.steps())
    assert ours["data/tokens"] == theirs["data/tokens"]
    assert ours["progress/epoch"] == theirs["progress/epoch"] == 1 + 4 / 5
