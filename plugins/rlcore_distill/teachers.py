"""Teachers: what gives the distribution of each chosen token of a batch.

Also in this file: whether teacher and policy have the same tokens, which every loss of their distributions needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy, SizedVocabulary
from rlcore.training import Run, by_block
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_distill.config import BASE, DistillConfig
from rlcore_distill.loss import top_outcomes
from rlcore_transformers.models.peft.adapters import Adapters, find_adapters
from rlcore_transformers.models.peft.inject import GIVEN, REWRITTEN
from rlcore_transformers.models.tokenizers import load_tokenizer


def check_same_tokens(policy: Any, teacher: Any, *, option: str, name: str) -> None:
    """Check that two tokenizers of `transformers` give every id the same token.

    Args:
        policy: the policy's.
        teacher: the teacher's.
        option: the option that names the teacher, for the message.
        name: its value.

    Raises:
        ConfigError: they differ; the message names both and the first difference.
    """
    ours, theirs = ({number: token for token, number in each.get_vocab().items()} for each in (policy, teacher))
    different = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    if not different:
        return
    first = different[0]
    raise ConfigError(
        f"{option} = {name!r}: the teacher has another tokenizer than the policy: {_named(teacher)} with {len(theirs)} "
        f"tokens, and {_named(policy)} with {len(ours)}, which differ in {len(different)}; token {first} is "
        f"{theirs.get(first)!r:.40} of the teacher and {ours.get(first)!r:.40} of the policy. Their distributions "
        "cannot be compared: choose a teacher of the policy's family, or imitate its outputs as text, with trainer "
        "sft on outputs that it has written"
    )


def table_size(policy: object) -> int:
    """Return the number of rows of a policy's table of tokens, whose weights are whole; 0 if it does not state it."""
    return policy.vocabulary_size if isinstance(policy, SizedVocabulary) else 0


def check_tokens(batch: Trajectories, size: int, whose: str) -> None:
    """Check that a model has every chosen token of some sequences; its table may have fewer rows than another's.

    The other tokens are the tokenizer's, or stand for images, which both models read.

    Args:
        batch: the sequences.
        size: number of rows of the model's table; 0 if it is unknown.
        whose: the model, for errors.

    Raises:
        DataError: it lacks one.
    """
    chosen = batch.tokens[batch.action_mask]
    highest = int(chosen.max()) if size and len(chosen) else -1
    if highest >= size:
        raise DataError(
            f"a sequence has token {highest}, which {whose} does not have: its table has {size} rows. The token is "
            "none of the tokenizer's, but one of the rows with which the table of the other model, which sampled it, "
            "is padded: remove these rows by model.resize_token_embeddings(len(tokenizer))"
        )


def check_texts(batch: Trajectories, tokenizer: Any, option: str) -> None:
    """Check that some sequences show no images, whose tokens are none of the tokenizer's.

    Args:
        batch: the sequences.
        tokenizer: the policy's.
        option: the option that names what reads texts only, for the message.

    Raises:
        DataError: one shows an image.
    """
    given = batch.tokens[batch.mask & ~batch.action_mask]
    if len(given) and int(given.max()) > max(tokenizer.get_vocab().values()):
        raise DataError(
            f"{option}: a prompt shows an image, and a server is sent texts alone: name the teacher's folder or hub id "
            "as trainer.teacher"
        )


def _named(tokenizer: object) -> str:
    return f"{type(tokenizer).__name__} {getattr(tokenizer, 'name_or_path', '')!s:.60}".strip()


@attrs.frozen(eq=False)
class Compared:
    """The distributions of student and teacher over the same outcomes.

    Attributes:
        logprobs: float[N, K], the student's, with gradients.
        teacher_logprobs: float[N, K].
        mass: float[N], the teacher's probability of the tokens that it named; 1 where it named all.
        agrees: bool[N], whether both have the same most likely token.
    """

    logprobs: Tensor
    teacher_logprobs: Tensor
    mass: Tensor
    agrees: Tensor


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
        num_tokens: tokens of the tokenizer. Where the tables of policy and teacher have different numbers of rows, the
            rows after these are padding: both distributions are those of the tokens, given that one of them is chosen.
    """

    def __init__(self, score: Callable[..., PolicyOutputs], model: Policy | None, *, num_tokens: int) -> None:
        self._score, self.model, self._num_tokens = score, model, num_tokens
        self._vocabulary = table_size(model)

    def compare(self, part: Trajectories, logits: Tensor, *, temperature: float) -> Compared:
        """Return the distributions over the whole vocabulary, or without padding if only one of them has it.

        Raises:
            DataError: a sequence has a token that the teacher does not have.
        """
        if 0 < self._vocabulary < logits.shape[1]:
            check_tokens(part, self._vocabulary, "the teacher")
        with torch.no_grad():
            teacher = self._score(part, logits=True, temperature=temperature).need("logits").float()
        if teacher.shape[1] != logits.shape[1]:
            logits, teacher = logits[:, : self._num_tokens], teacher[:, : self._num_tokens]
        agrees = logits.detach().argmax(-1) == teacher.argmax(-1)
        teacher = F.log_softmax(teacher, -1)
        return Compared(F.log_softmax(logits.float(), -1), teacher, teacher.new_ones(len(teacher)), agrees)


class TopTeacher:
    """A teacher that names its most likely tokens only, such as a server's.

    Args:
        source: returns for a batch the ids, long[N, k], and the log-probs at temperature 1, float[N, k], of the most
            likely tokens at each of the N chosen tokens, the most likely one first.
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
        return Compared(student, teacher, mass, logits.detach().argmax(-1) == ids[:, 0])


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
        ConfigError: the teacher has other tokens, there is no adapter, the model beneath it is not kept, or a server
            cannot give what is asked of it.
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
    num_tokens = max(policy.tokenizer.get_vocab().values()) + 1
    if needs_reference(config):
        _keep_base(policy)
        return ModelTeacher(_beneath(policy), None, num_tokens=num_tokens)
    tokenizer = load_tokenizer(config.teacher, None)
    check_same_tokens(policy.tokenizer, tokenizer, option="trainer.teacher", name=config.teacher)
    other = run.models.frozen(config.teacher, padded=True)
    return ModelTeacher(other.score, other, num_tokens=num_tokens)


def _keep_base(policy: Any) -> None:
    """Let the policy's reference be the model beneath its adapter, also where this was trained before the run.

    Raises:
        ConfigError: there is no adapter, or the model beneath it is not kept.
    """
    adapters = find_adapters(policy.model) if isinstance(policy.reference, Adapters | PreTrainedModel) else None
    if adapters is None:
        raise ConfigError(
            "trainer.teacher = 'base': the policy has no adapter (model.peft), so that the model beneath it is the "
            "policy itself; name a folder or hub id"
        )
    layout, is_new = policy.module.layout, isinstance(vars(policy.model).get(GIVEN), Mapping)
    if isinstance(policy.reference, Adapters) or adapters.change_nothing(layout):
        return
    is_rewritten = bool(vars(policy.model).get(REWRITTEN))
    if is_rewritten and is_new:
        return  # the reference is a copy of the model, which such an initialisation does not change as a whole
    if is_rewritten or not adapters.leave_base_fixed(layout):
        reason = "making the adapter changed its weights" if is_rewritten else "some of its weights train too"
        raise ConfigError(
            f"trainer.teacher = 'base': the model beneath the adapter is not kept, because {reason}; name its folder "
            "or hub id"
        )
    policy.reference = adapters
