from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, RewardError
from rlcore.settings import TrainConfig
from rlcore.training import Round
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Trajectories
from rlcore_testing.small import EOS, PROMPTS, make_gpt2, make_llama, make_tokenizer

ENDS = [EOS, 3, 7, 11, 19]


def halves(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


def settings(folder: Path, run: Any, **options: Any) -> dict[str, Any]:
    return {
        "trainer": {"name": "rlcore-rft:rft", "generations": 6, "improve_steps": 2, **options},
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS},
        "run": {"root": str(folder), "steps": 4, **(run or {})},
        "loggers": [],
    }


def make(folder: Path, model: Any, *, reward_fn: Any = halves, run: Any = None, **options: Any) -> Any:
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=reward_fn)
    config = structure(TrainConfig, settings(folder, run, **options), where="test")
    return assemble(config, inputs, "test").trainer


def train(folder: Path, *, reward_fn: Any, run: Any = None, **options: Any) -> rlcore.Result:
    given = settings(folder, run, **options)
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=reward_fn, **given,
    )  # fmt: skip


def rows_of(batch: Trajectories) -> list[tuple[int, ...]]:
    return [tuple(row[real].tolist()) for row, real in zip(batch.tokens, batch.mask, strict=True)]


def scored(rows: list[tuple[int, int, float]]) -> Trajectories:
    """Return a batch of (prompt, output, score) rows of one token each."""
    batch = Trajectories.stack([[prompt, output] for prompt, output, _ in rows], [[False, True]] * len(rows))
    prompts, _, scores = zip(*rows, strict=True)
    return batch.with_columns(prompts=torch.tensor(prompts), scores=torch.tensor(scores))


def test_the_chosen_responses_equal_those_worked_by_hand(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), start_percentile=0.5, end_percentile=1.0)
    # Prompt 3: scores 0 1 1 4, median 1. Prompt 5: 2 2 2, and prompt 6: 0 0, the lowest score.
    rows = [(3, 20, 1.0), (3, 21, 0.0), (3, 20, 1.0), (3, 22, 4.0)]
    trainer.history.add(
        trainer.run.deal(scored([*rows, (5, 23, 2.0), (5, 24, 2.0), (5, 23, 2.0), (6, 25, 0.0), (6, 26, 0.0)]))
    )
    trainer.num_improved = 0
    chosen, metrics = trainer.select()
    assert rows_of(chosen.own) == [(3, 20), (3, 22), (5, 23), (5, 24)]
    assert metrics == {
        "rft/percentile": 0.5, "rft/threshold_mean": pytest.approx((1 + 2 + 0.001) / 3), "rft/kept": 6.0,
        "rft/kept_fraction": pytest.approx(6 / 9), "rft/unique": 4.0,
    }  # fmt: skip
    trainer.num_improved = 1
    chosen, metrics = trainer.select()
    assert rows_of(chosen.own) == [(3, 22), (5, 23), (5, 24)]
    assert metrics["rft/threshold_mean"] == pytest.approx((3.999 + 2 + 0.001) / 3)


def test_the_tokens_that_were_sampled_are_the_tokens_trained_on(tmp_path: Path) -> None:
    heard, learned = [], []
    trainer = make(tmp_path, make_gpt2())
    trainer.run.observers.on_rollout = lambda _, batch: heard.append(batch)
    imitate = trainer.imitate
    trainer.imitate = lambda chosen: learned.append(chosen) or imitate(chosen)
    steps = trainer.steps()
    for _ in range(4):
        next(steps)
    assert len(heard) == 2
    for number, chosen in enumerate(learned):
        sampled = {}
        for batch in heard[: number // 2 + 1]:
            sampled |= dict(zip(rows_of(batch), batch.action_tokens, strict=True))
        assert 0 < len(chosen) < len(sampled)
        for row, actions in zip(rows_of(chosen.own), chosen.own.action_tokens, strict=True):
            assert sampled[row] == actions
        assert len(set(rows_of(chosen.own))) == len(chosen)


@pytest.mark.parametrize("micro", [0, 3])
def test_the_gradient_is_that_of_the_equation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro: int) -> None:
    model = make_llama()
    plain = copy.deepcopy(model)
    trainer = make(tmp_path, model, micro_batch_size=micro, batch_size=100)
    trainer.grow()
    trainer.num_improved = 0
    chosen, _ = trainer.select()
    total = torch.zeros(())
    for row, actions in zip(rows_of(chosen.own), chosen.own.action_tokens, strict=True):
        tokens = torch.tensor(row)
        logprobs = plain(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        total = total - logprobs[-len(actions) :].sum()
    (total / sum(map(len, chosen.own.action_tokens))).backward()
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    metrics = trainer.imitate(chosen)
    assert metrics["loss/total"] == pytest.approx(
        float(total.detach()) / sum(map(len, chosen.own.action_tokens)), rel=1e-4
    )
    found = {name: p.grad for name, p in trainer.policy().module.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert torch.allclose(found[f"model.{name}"], parameter.grad, atol=2e-5, rtol=1e-4), name


def test_an_improve_pass_trains_once_on_each_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, make_gpt2(), batch_size=5)
    trainer.grow()
    trainer.num_improved = 0
    chosen, _ = trainer.select()
    seen, score = [], trainer.policy().score
    monkeypatch.setattr(trainer.policy(), "score", lambda part, **named: seen.append(part) or score(part, **named))
    trainer.imitate(chosen)
    assert [len(part) for part in seen] == [5] * (len(chosen) // 5) + [len(chosen) % 5] * (len(chosen) % 5 > 0)
    assert sorted(row for part in seen for row in rows_of(part)) == sorted(rows_of(chosen.own))


def test_dropout_is_the_models_own_unless_it_is_turned_off(tmp_path: Path) -> None:
    for dropout in (True, False):
        model = make_gpt2()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
        trainer = make(tmp_path / str(dropout), model, dropout=dropout, batch_size=64, optimizer={"lr": 1e-12})
        trainer.grow()
        trainer.num_improved = 0
        chosen, _ = trainer.select()
        losses = [trainer.imitate(chosen)["loss/total"] for _ in range(2)]
        assert (losses[0] == pytest.approx(losses[1], rel=1e-5)) != dropout


def test_each_improve_step_of_each_round_has_an_order_of_its_own(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), batch_size=5)
    trainer.grow()
    trainer.num_improved = 0
    chosen, accumulate = trainer.select()[0], trainer.updater.accumulate
    order: list[tuple[int, ...]] = []

    def note(minibatch: Round, *given: Any, **named: Any) -> Any:
        order.extend(rows_of(minibatch.own))
        return accumulate(minibatch, *given, **named)

    trainer.updater.accumulate, orders = note, set()
    for number, step in ((1, 0), (1, 1), (2, 0)):
        trainer.num_rounds, trainer.num_improved = number, step
        order.clear()
        trainer.imitate(chosen)
        assert sorted(order) == sorted(rows_of(chosen.own))
        orders.add(tuple(order))
    assert len(orders) == 3


@pytest.mark.parametrize("improve_steps", [1, 2])
def test_equal_rewards_change_no_weights_and_do_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], improve_steps: int
) -> None:
    def flat(outputs: list[str]) -> list[float]:
        return [2.0] * len(outputs)

    result = train(tmp_path, reward_fn=flat, improve_steps=improve_steps)
    assert result.run.step == 4
    assert result.metrics["rft/kept"] == result.metrics["rft/kept_fraction"] == 0
    assert "loss/total" not in result.metrics
    before = make_gpt2().state_dict()
    for name, weight in result.policy.module.state_dict().items():
        assert torch.equal(weight, before[name.removeprefix("model.")]), name
    assert capsys.readouterr().err.count("nothing to imitate") == 1


def test_dense_rewards_count_with_their_sums(tmp_path: Path) -> None:
    def dense(outputs: list[str], output_tokens: list[list[int]]) -> list[list[float]]:
        return [[float(token) for token in tokens] for tokens in output_tokens]

    trainer = make(tmp_path, make_gpt2(), reward_fn=dense)
    trainer.grow()
    held = trainer.history.responses
    assert held["scores"].tolist() == [sum(tokens) for tokens in held.own.action_tokens]
    trainer.num_improved = 0
    chosen, _ = trainer.select()
    for prompt in held["prompts"].unique():
        mine = held["scores"][held["prompts"] == prompt]
        kept = chosen["scores"][chosen["prompts"] == prompt]
        assert kept.max() == mine.max()
        assert kept.min() > mine.min()


def test_a_round_takes_each_prompt_once_a_pass(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), prompts=3, run={"epochs": 2.0, "steps": None})
    assert trainer.run.total_steps == 2 * 3 * 2  # two passes over rounds of 3, 3 and 2 prompts, two improve steps each
    dealt = []
    trainer.run.observers.on_rollout = lambda _, batch: dealt.append(batch["prompts"].tolist())
    steps = trainer.steps()
    for _ in range(6):
        metrics = next(steps)
    assert [len(numbers) for numbers in dealt] == [18, 18, 12]
    assert sorted(number for numbers in dealt for number in numbers) == sorted(6 * list(range(8)))
    assert metrics["progress/epoch"] == 1.0


def test_the_history_spans_as_many_rounds_as_the_option_says(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), history=2, improve_steps=1)
    steps = trainer.steps()
    held = []
    for _ in range(3):
        next(steps)
        held.append(int(trainer.history.responses["counts"].sum()))
    assert held == [48, 96, 96]


def test_a_schedule_falls_equally_in_each_improve_step(tmp_path: Path) -> None:
    optimizer = {"lr": 1e-3, "scheduler": "linear"}
    trainer = make(tmp_path, make_gpt2(), batch_size=4, optimizer=optimizer)
    steps, left = trainer.steps(), []
    for _ in range(4):
        metrics = next(steps)
        assert 4 < metrics["rft/unique"] < trainer.history.responses["counts"].sum()
        left.append(trainer.updater.scheduler.get_last_lr()[0])
    assert left == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0])


@pytest.mark.slow
def test_training_raises_a_reward_for_the_letter_a(tmp_path: Path) -> None:
    result = train(
        tmp_path, reward_fn=lambda outputs: [output.count("a") for output in outputs], run={"steps": 24},
        generations=24, improve_steps=3, batch_size=16, optimizer={"lr": 5e-3},
    )  # fmt: skip
    assert result.metrics["reward/mean"] > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_percentile": 0.9, "end_percentile": 0.8}, r"start_percentile = 0.9: is above end_percentile = 0.8"),
        ({"start_percentile": 70}, r"start_percentile = 70: must lie in \[0, 1\]"),
        ({"generations": 0}, r"generations = 0: must be at least 1"),
    ],
)
def test_meaningless_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, make_gpt2(), **options)


def test_responses_without_a_score_are_left_out(tmp_path: Path) -> None:
    """If they were scored 0, they would rank best when all other scores are negative."""

    def grudging(outputs: list[str]) -> list[float | None]:
        return [None if "a" in output else -1.0 - len(output) / 10 for output in outputs]

    trainer = make(tmp_path, make_gpt2(), reward_fn=grudging)
    trainer.grow()
    scores = trainer.history.responses["scores"]
    assert len(scores)
    assert float(scores.max()) < 0
    trainer.num_improved = 0
    chosen, _ = trainer.select()
    assert not any(0 in row for row in chosen.own.action_tokens)  # the token of "a"


def test_a_round_without_any_score_is_an_error(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), reward_fn=lambda outputs: [None for _ in outputs])
    with pytest.raises(RewardError, match=r"step 1: 48 of 48 responses have no score, and .*rft"):
        trainer.grow()


def test_warm_up_lasts_for_its_number_of_optimizer_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass makes few of the optimizer steps planned for it; the warm-up spans passes instead of being left out."""
    trainer = make(tmp_path, make_gpt2(), batch_size=8, optimizer={"lr": 1e-3, "warmup_steps": 6})
    rates, step = list[float](), trainer.updater.step

    def noted(meter: Any) -> None:
        step(meter)
        rates.append(trainer.updater.lr * 1e3)

    monkeypatch.setattr(trainer.updater, "step", noted)
    for _ in zip(range(4), trainer.steps(), strict=False):
        trainer.run.progress.step += 1
    assert 0 < len(rates) < 4 * trainer.updates_per_step
    assert rates[:8] == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1])


def test_a_pass_that_keeps_nothing_advances_the_schedule(tmp_path: Path) -> None:
    """Two of four planned optimizer steps are left out because all scores of the first round are equal."""
    rounds: list[int] = []

    def flat_at_first(outputs: list[str]) -> list[float]:
        rounds.append(1)
        return [2.0] * len(outputs) if len(rounds) == 1 else halves(outputs)

    optimizer = {"lr": 1e-3, "scheduler": "linear"}
    trainer = make(tmp_path, make_gpt2(), reward_fn=flat_at_first, batch_size=1000, optimizer=optimizer)
    rates = []
    for _, metrics in zip(range(4), trainer.steps(), strict=False):
        rates.append(metrics["lr"])
        trainer.run.progress.step += 1
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
