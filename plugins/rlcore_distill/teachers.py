"""Teachers: what gives the distribution of each chosen token of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.protocols import Policy
from rlcore.training import Run, by_block
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_distill.config import BASE, DistillConfig
from rlcore_distill.loss import top_outcomes
from rlcore_distill.vocabulary import check_same_tokens
from rlcore_transformers.models.tokenizers import load_tokenizer


@attrs.frozen(eq=False)
class Compared:
    """The distributions of student and teacher over the same outcomes.

    Attributes:
        logprobs: float[N, K], the student's, with gradients.
        teacher_logprobs: float[N, K].
        mass: float[N], the teacher's probability of the tokens that it named; 1 where it named all.
    """

    logprobs: Tensor
    teacher_logprobs: Tensor
    mass: Tensor


class Teacher(Protocol):
    """Gives the distribution of each chosen token."""

    def compare(self, part: Trajectories, logits: Tensor, *, temperature: float) -> Compared:
        """Return the distributions of student and teacher of the N chosen tokens of a micro-batch.

        Args:
            part: the sequences, on the policy's device.
            logits: float[N, V] of the student, divided by the temperature.
            temperature: divisor of the teacher's logits.
        """
        ...


class ModelTeacher:
    """A teacher whose logits are computed in this process: another model, or the one beneath the policy's adapter.

    Args:
        score: returns the teacher's outputs for a batch, as `Policy.score` does.
        model: the teacher as a policy, which samples; None beneath an adapter.
    """

    def __init__(self, score: Callable[..., PolicyOutputs], model: Policy | None) -> None:
        self._score, self.model = score, model

    def compare(self, part: Trajectories, logits: Tensor, *, temperature: float) -> Compared:
        """Return the distributions over the whole vocabulary."""
        with torch.no_grad():
            outputs = self._score(part, logits=True, temperature=temperature)
            teacher = F.log_softmax(outputs.need("logits").float(), -1)
        return Compared(F.log_softmax(logits.float(), -1), teacher, teacher.new_ones(len(teacher)))


class TopTeacher:
    """A teacher that names its most likely tokens only, such as a server's.

    Args:
        source: returns for a batch the ids, long[N, k], and the log-probs at temperature 1, float[N, k], of the most
            likely tokens at each of the N chosen tokens.
        tail: what is assumed of the other tokens (`ServerOptions.tail`).
    """

    def __init__(self, source: Callable[[Trajectories], tuple[Tensor, Tensor]], tail: str) -> None:
        self._source, self._tail = source, tail

    def compare(self, part: Trajectories, logits: Tensor, *, temperature: float) -> Compared:
        """Return the distributions over the named tokens and all others together."""
        ids, named = (each.to(logits.device) for each in self._source(part))
        mass = named.exp().sum(-1).clamp(max=1.0)
        if temperature != 1:
            named = named / temperature  # which `renormalise` divides by its sum
        student, teacher = top_outcomes(F.log_softmax(logits.float(), -1), ids, named, tail=self._tail)
        return Compared(student, teacher, mass)


def _beneath(policy: Policy) -> Callable[..., PolicyOutputs]:
    def score(part: Trajectories, *, logits: bool, temperature: float) -> PolicyOutputs:
        with by_block(policy):
            return policy.reference_score(part, logits=logits, temperature=temperature)

    return score


def needs_reference(config: DistillConfig) -> bool:
    """Return whether the teacher is the model beneath the policy's adapter."""
    return config.teacher == BASE


def build_teacher(config: DistillConfig, run: Run, policy: Policy, *, temperature: float) -> Teacher:
    """Build the teacher that the options name.

    Args:
        config: the options, checked.
        run: the run, which has built its policy.
        policy: that policy.
        temperature: of the loss.

    Raises:
        ConfigError: the teacher has other tokens, or there is no adapter, or a server cannot give what is asked of it.
        ModelError: the teacher cannot be loaded.
    """
    if config.server.url:
        if policy.outputs_begin_text:
            raise ConfigError(
                "trainer.server.url: a server continues prompts, and the policy is an encoder-decoder; name a folder "
                "or hub id as trainer.teacher"
            )
        if config.server.tail == "bucket" and temperature != 1:
            raise ConfigError(
                f"trainer.temperature = {temperature:g}: a server states probabilities at temperature 1, from which "
                "that of the other tokens at another one does not follow; set it to 1, or trainer.server.tail to "
                "renormalise"
            )
        from rlcore_distill.server import ServerLogprobs

        return TopTeacher(ServerLogprobs(config.server, policy.tokenizer), config.server.tail)
    if needs_reference(config):
        if run.config.model.get("peft") is None:
            raise ConfigError(
                "trainer.teacher = 'base': the policy has no adapter (model.peft), so that the model beneath it is "
                "the policy itself; name a folder or hub id"
            )
        return ModelTeacher(_beneath(policy), None)
    tokenizer = load_tokenizer(config.teacher, None)
    check_same_tokens(policy.tokenizer, tokenizer, option="trainer.teacher", name=config.teacher)
    other = run.models.frozen(config.teacher)
    return ModelTeacher(other.score, other)
