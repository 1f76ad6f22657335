from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_making import make, teacher_folder
from distill_server import LogprobServer

from rlcore.errors import ConfigError, DataError, ModelError


@pytest.fixture
def server() -> Iterator[LogprobServer]:
    found = LogprobServer()
    yield found
    found.close()


def served(server: LogprobServer, **more: Any) -> dict[str, Any]:
    return {"teacher": "", "server": {"url": server.url, "model": "any", "top_k": 5, "retries": 0, **more}}


def gradients(trainer: Any, batch: Any) -> dict[str, torch.Tensor]:
    trainer.updater.accumulate(batch, trainer.loss, size=trainer.config.micro_batch_size)
    return {name: p.grad.clone() for name, p in trainer.policy().module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_a_server_that_names_every_token_teaches_as_the_model_itself(
    server: LogprobServer, tmp_path: Path, divergence: str
) -> None:
    options = {"divergence": divergence, "on_policy": 0.0}
    local = make(tmp_path / "local", options=options)
    remote = make(
        tmp_path / "remote", options={**served(server, top_k=32, tail="bucket"), **options, "micro_batch_size": 2}
    )
    batch = local.rows.next()[0].own
    expected, found = gradients(local, batch), gradients(remote, batch)
    for name, each in expected.items():
        assert torch.allclose(found[name], each, atol=2e-5, rtol=1e-3), name


@pytest.mark.parametrize("tail", ["renormalise", "bucket"])
def test_the_most_likely_tokens_are_compared_as_a_loop_over_numbers_does(
    server: LogprobServer, tmp_path: Path, tail: str
) -> None:
    trainer = make(tmp_path, options={**served(server, tail=tail), "divergence": "forward_kl", "on_policy": 0.0})
    batch = trainer.rows.next()[0].own
    losses, metrics = trainer.loss(batch)
    model = trainer.policy().module.model
    for i, t in batch.action_mask.nonzero().tolist():
        start = int(batch.mask[i].nonzero()[0])
        with torch.no_grad():
            tokens = batch.tokens[i, start:t][None]
            p, q = (each(tokens).logits[0, -1].softmax(-1) for each in (server.model, model))
        kept = p.topk(5).indices.tolist()
        mass = sum(float(p[k]) for k in kept)
        scale = mass if tail == "renormalise" else 1.0
        expected = sum(float(p[k]) / scale * math.log(float(p[k]) / scale / float(q[k])) for k in kept)
        if tail == "bucket":
            expected += (1 - mass) * math.log((1 - mass) / (1 - sum(float(q[k]) for k in kept)))
        assert float(losses[i, t].detach()) == pytest.approx(expected, abs=2e-4)
        assert float(metrics["distill/teacher_mass"][i, t]) == pytest.approx(mass, abs=1e-5)
        assert bool(metrics["distill/agreement"][i, t]) == (int(p.argmax()) == int(q.argmax()))


def test_requests_have_the_tokens_and_the_number_of_log_probs(server: LogprobServer, tmp_path: Path) -> None:
    trainer = make(tmp_path, options={**served(server), "on_policy": 0.0})
    batch = trainer.rows.next()[0].own
    trainer.loss(batch)
    sent = sorted(body["prompt"] for body in server.asked)
    assert sent == sorted(row[mask].tolist() for row, mask in zip(batch.tokens, batch.mask, strict=True))
    assert {body["prompt_logprobs"] for body in server.asked} == {5}
    assert {body["model"] for body in server.asked} == {"any"}


@pytest.mark.parametrize(("changes", "message"), [
    ({"prompt_logprobs": None}, r"prompt_logprobs of none; the server must return prompt_logprobs"),
    ({"prompt_logprobs": [None]}, r"tokens were sent, and the answer has prompt_logprobs of 1;"),
])  # fmt: skip
def test_an_answer_without_log_probs_is_an_error(
    server: LogprobServer, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    server.changes = changes
    trainer = make(tmp_path, options={**served(server), "on_policy": 0.0})
    with pytest.raises(ModelError, match=message):
        trainer.loss(trainer.rows.next()[0].own)


def test_a_server_with_another_tokenizer_is_refused_by_name(server: LogprobServer, tmp_path: Path) -> None:
    server.shift = 1
    trainer = make(tmp_path, options={**served(server), "on_policy": 0.0})
    with pytest.raises(ConfigError, match=r"trainer.server.model = 'any': the teacher has another tokenizer .* token "):
        trainer.loss(trainer.rows.next()[0].own)


@pytest.mark.parametrize(("status", "error", "message"), [
    (401, ConfigError, "set trainer.server.key_env to the variable with the server's key"),
    (404, ConfigError, "check trainer.server.url"),
    (400, DataError, "a request is refused"),
])  # fmt: skip
def test_what_the_server_refuses_names_the_option(
    server: LogprobServer, tmp_path: Path, status: int, error: type[Exception], message: str
) -> None:
    server.status = status
    trainer = make(tmp_path, options={**served(server), "on_policy": 0.0})
    with pytest.raises(error, match=message):
        trainer.loss(trainer.rows.next()[0].own)


@pytest.mark.parametrize(("trainer", "options", "message"), [
    ("distill", {"teacher": teacher_folder()}, "trainer.server.url names a teacher too"),
    ("distill", {"divergence": "reverse_kl"}, "set trainer.server.tail to bucket, or choose forward_kl or jsd"),
    ("distill_prompts", {"on_policy": 0.5}, r"trainer.on_policy = 0.5: a server gives log-probs here"),
])  # fmt: skip
def test_what_a_server_cannot_do_is_refused(
    server: LogprobServer, tmp_path: Path, trainer: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, trainer=trainer, options={**served(server), **options})


def test_a_bucket_at_another_temperature_is_refused(server: LogprobServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.temperature = 0.5: a server states probabilities at temperature 1"):
        make(tmp_path, options={**served(server, tail="bucket"), "temperature": 0.5})
