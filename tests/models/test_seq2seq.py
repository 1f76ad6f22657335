"""Tests of encoder-decoder policies: outputs equal those of transformers, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seq2seq_making import CONFIGS, PROMPTS, build, dialogues, habitual, make
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_ilql.config import q_heads
from rlcore_testing.small import EOS, make_tokenizer
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.heads import TrunkValue
from rlcore_transformers.models.policy import ModelPolicy


def losses(
    model: PreTrainedModel, batch: Trajectories, *, closing: tuple[int, ...] = (), opening: tuple[int, ...] = ()
) -> Tensor:
    """Return transformers' own loss of each chosen token alone: float[N]."""
    found = []
    start = model.config.decoder_start_token_id
    for ids, real, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        row, marks = ids[real].tolist(), chosen[real].tolist()
        first = marks.index(True)
        source, target = torch.tensor([[*row[:first], *closing]]), row[first:]
        read = torch.tensor([[start, *opening, *target[:-1]]])
        for k in range(len(target)):
            if marks[first + k]:
                labels = torch.full_like(read, -100)
                labels[0, len(opening) + k] = target[k]
                found.append(model(input_ids=source, decoder_input_ids=read, labels=labels).loss.detach())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_transformers_own_losses_token_by_token(name: str, side: str) -> None:
    batch, policy = dialogues(side), build(make(name))
    said = policy.score(batch).logprobs
    assert torch.allclose(-said[batch.action_mask], losses(make(name), batch), atol=1e-4)
    assert not said[~batch.action_mask].any()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_demonstration_has_the_loss_that_transformers_gives_its_labels(name: str) -> None:
    policy, plain = build(make(name)), make(name)
    batch = Trajectories.stack([[1, 2, 3, 4, 5, EOS]], [[False, False, False, True, True, True]])
    loss = plain(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[4, 5, EOS]])).loss
    assert -float(policy.score(batch).logprobs.sum().detach() / 3) == pytest.approx(float(loss.detach()), abs=1e-5)


@pytest.mark.parametrize("forced", [None, 28])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_and_decoder_texts_have_the_special_tokens_of_the_tokenizer(name: str, forced: int | None) -> None:
    model, plain = make(name), make(name)
    model.generation_config.forced_bos_token_id = forced
    batch, policy = dialogues("both"), build(model, habitual())
    expected = losses(plain, batch, closing=(EOS,), opening=(29 if forced is None else forced,))
    assert torch.allclose(-policy.score(batch).logprobs[batch.action_mask], expected, atol=1e-4)


def test_a_prompt_that_ends_with_eos_gets_no_second_eos() -> None:
    policy, rows = build(make("t5"), habitual()), [[1, 2, EOS, 3], [1, 2, 3], [EOS, 4]]
    batch = Trajectories.stack(rows, [[False] * (len(row) - 1) + [True] for row in rows])
    inputs = policy.module.layout.lay_out(batch.tokens, batch.mask, batch.action_mask).inputs
    read = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
    assert read == [[1, 2, EOS], [1, 2, EOS], [EOS]]


@pytest.mark.parametrize("options", [{}, {"value_layers": 2}, {"critic": "copy"}], ids=str)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_padding_does_not_change_scores(name: str, options: dict[str, Any]) -> None:
    policy = build(make(name), habitual(), value_head=True, heads=q_heads(2), **options)
    narrow = dialogues("right", 11)
    expected = policy.score(narrow)
    for side in ("left", "right", "both"):
        batch = dialogues(side, 23)
        said = policy.score(batch)
        for found, due in ((said.logprobs, expected.logprobs), (said.values, expected.values)):
            assert torch.allclose(found[batch.action_mask], due[narrow.action_mask], atol=1e-5)
        found = said.heads["q_values"][:, batch.action_mask]
        assert torch.allclose(found, expected.heads["q_values"][:, narrow.action_mask], atol=1e-5)


@pytest.mark.parametrize("tokenizer", [make_tokenizer, habitual])
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_of_sampling_equal_those_of_scoring(name: str, tokenizer: Any) -> None:
    policy = build(make(name), tokenizer(), value_head=True)
    prompts = [Prompt("", tuple(ids)) for ids in PROMPTS * 4]
    sampling = SamplingConfig(max_new_tokens=9, eos_token_ids=(EOS, 3, 7, 11, 19))
    batch = sample(policy, prompts, sampling, generator=torch.Generator().manual_seed(1))
    assert len(set(batch.num_actions.tolist())) > 2  # some sequences finish early
    said = policy.score(batch)
    assert torch.allclose(said.logprobs, batch["logprobs"], atol=1e-4)
    assert torch.allclose(said.values, batch["values"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [make_tokenizer, habitual])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_sampling_gives_the_continuation_of_generate(name: str, tokenizer: Any) -> None:
    policy, plain = build(make(name), tokenizer()), make(name)
    greedy = SamplingConfig(temperature=0, max_new_tokens=9)
    batch = sample(policy, [Prompt("", tuple(ids)) for ids in PROMPTS], greedy)
    layout = policy.module.layout
    for ids, said in zip(PROMPTS, batch.action_tokens, strict=True):
        source = torch.tensor([[*ids, *layout.closing]])
        begun = torch.tensor([layout.opening])
        whole = plain.generate(
            source, attention_mask=torch.ones_like(source), decoder_input_ids=begun, max_new_tokens=9, do_sample=False,
            use_cache=False,  # T5's cache counts the encoder's layers where the decoder has more
        )  # fmt: skip
        assert said == whole[0, begun.shape[1] :].tolist()


def by_hand(policy: ModelPolicy, plain: PreTrainedModel, batch: Trajectories) -> Tensor:
    """Compute V before each chosen token with the whole model, one unpadded sequence at a time: float[N]."""
    found = []
    for ids, real, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        row, marks = ids[real], chosen[real]
        first = int(marks.nonzero()[0, 0])
        read = plain.get_encoder()(input_ids=row[:first][None]).last_hidden_state
        start = torch.tensor([plain.config.decoder_start_token_id])
        hidden = plain.get_decoder()(
            input_ids=torch.cat([start, row[first:-1]])[None], encoder_hidden_states=read, use_cache=False
        ).last_hidden_state[0]
        found.append(policy.module.value.head(hidden)[marks[first:]])
    return torch.cat(found)


@pytest.mark.parametrize("options", [{}, {"value_layers": 1}, {"value_layers": 3}, {"critic": "copy"}], ids=str)
@pytest.mark.parametrize("name", ["t5", "t5, version 1.1", "bart", "marian"])
def test_the_value_of_a_token_is_computed_from_the_decoder_state_before_it(name: str, options: dict[str, Any]) -> None:
    policy, batch = build(make(name), value_head=True, **options), dialogues("both")
    if isinstance(policy.module.value, TrunkValue):
        # T5's own head receives scaled hidden states; the value head must not.
        assert policy.module.value.head.gain == (4.0 if name == "t5" else 1.0)
        policy.module.value.head.gain, gain = 1.0, policy.module.value.head.gain
        expected = by_hand(policy, make(name), batch)
        policy.module.value.head.gain = gain
    else:
        expected = by_hand(policy, make(name), batch)
    for _ in range(2):
        assert torch.allclose(policy.score(batch).values[batch.action_mask], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_branchs_gradient_in_the_encoder_is_that_of_a_whole_decoder(name: str) -> None:
    policy, plain, batch = build(make(name), value_head=True, value_layers=2), make(name), dialogues("both")
    policy.score(batch).values.sum().backward()
    by_hand(policy, plain, batch).sum().backward()
    due = dict(plain.get_encoder().named_parameters())
    for part, parameter in policy.model.get_encoder().named_parameters():
        if "embed" not in part:  # the decoder uses it too
            assert torch.allclose(parameter.grad, due[part].grad, rtol=1e-3, atol=1e-4), part


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_branch_trains_itself_and_the_trunk_but_not_the_policys_top(name: str, checkpointing: bool) -> None:
    policy = build(make(name), value_head=True, value_layers=1, gradient_checkpointing=checkpointing)
    policy.module.train()
    batch, blocks = dialogues(), decoder_blocks(policy.model)
    policy.score(batch).values[batch.action_mask].sum().backward()
    trunk = [*policy.model.get_encoder().parameters(), *blocks[2].parameters()]
    assert all(p.grad is not None and p.grad.any() for p in trunk if p.dim() > 1)
    assert not any(p.grad is not None and p.grad.any() for p in blocks[3].parameters())
    own = decoder_blocks(policy.module.value.top.decoder)[3]
    assert all(p.grad is not None for p in own.parameters())
