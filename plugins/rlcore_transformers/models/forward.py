"""Run a language model over a batch of trajectories and compute the outputs of the chosen tokens only.

Also in this file: compile the blocks of a model with `torch.compile`, for the passes that score batches; noise on the
embeddings of a model in training (NEFTune); the module that a learner trains: a model of `transformers`, with what an
algorithm adds to it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.errors import ConfigError, ModelError
from rlcore.ops import eval_mode, is_stochastic
from rlcore_transformers.models.freezing import blocks_of, vocabulary_size
from rlcore_transformers.models.heads import BranchValue, ForwardPass, ValueSource, head_reads
from rlcore_transformers.models.hub import first_line
from rlcore_transformers.models.input_layout import InputLayout
from rlcore_transformers.models.speed.activations import FAILURES, in_groups, probe_tokens, tolerance
from rlcore_transformers.models.speed.frozen_trunk import FrozenTrunk, TrunkFollower
from rlcore_transformers.models.speed.fused_logprobs import LogitMap, rows_for_the_head, score_tokens
from rlcore_transformers.models.speed.packing import padded_inputs


class ModelModule(nn.Module):
    """A module around a model of `transformers`, such as a language model with its heads.

    Attributes:
        model: the model.
    """

    model: PreTrainedModel

    def lockstep_copy(self, memo: dict[int, object], *, every_block: bool = False) -> ModelModule:  # noqa: ARG002
        """Return a copy that runs every block once in each forward pass, whatever the batch.

        Processes that divide the weights gather each block together.

        Args:
            memo: that of `copy.deepcopy`: the copies of what is not copied anew, such as parameters, by the id of the
                original.
            every_block: run also blocks whose outputs are cached.
        """
        return copy.deepcopy(self, memo)


RATES = "embedding_dropout"
"""Attribute of the input embeddings with alpha. Its name makes `rlcore.ops` find it among the dropout rates."""


class Alpha(dict[str, float]):
    """Alpha as a rate of dropout, which a trainer that needs a deterministic policy cannot disable unnoticed."""

    def __setitem__(self, key: str, value: float) -> None:
        """Refuse to become 0.

        Raises:
            ConfigError: dropout is disabled.
        """
        if value == 0:
            raise ConfigError(
                f"model.neftune_alpha = {self['alpha']:g}: this trainer disables dropout, because it compares the "
                "policy with the one that sampled, or with a reference, and noise on the embeddings is of the same "
                "kind; leave model.neftune_alpha out, or, if the trainer has the option, set trainer.dropout to true"
            )
        super().__setitem__(key, value)


def add_noise(model: PreTrainedModel, alpha: float) -> None:
    """Let `noisy` add noise to the embeddings of `model`; copies of it do so too."""
    setattr(model.get_input_embeddings(), RATES, Alpha(alpha=alpha))


@contextmanager
def noisy(model: PreTrainedModel, tokens: Tensor, mask: Tensor, action_mask: Tensor) -> Iterator[None]:
    """Add noise to the embeddings inside the context, if `add_noise` was called and a loss is computed.

    x_t <- x_t + alpha / sqrt(L H) * u, u uniform in [-1, 1]^H, for each of the L tokens of a sequence. Jain et al.
    2023, arXiv:2310.05914. A loss is computed if the model is in training mode and gradients are enabled; all other
    passes, such as those of evaluation, sampling and the reference, have no noise. It comes from the generator
    that dropout uses, and is the same for packed and padded batches.

    Args:
        model: the language model.
        tokens: long[B, T].
        mask: bool[B, T], True for real tokens.
        action_mask: bool[B, T], True for chosen tokens.
    """
    embeddings = model.get_input_embeddings()
    alpha: float = getattr(embeddings, RATES, {"alpha": 0.0})["alpha"]
    if not (alpha and model.training and torch.is_grad_enabled()):
        yield
        return
    read = mask & ops.needed(mask, ops.predicting(action_mask))  # later tokens have no effect on the loss
    lengths = mask.sum(1, keepdim=True).expand_as(mask)[read]

    def change(_: object, __: object, output: Tensor) -> Tensor:
        width = output.shape[-1]
        noise = torch.empty(len(lengths), width, dtype=output.dtype, device=output.device).uniform_(-1, 1)
        noise = noise * (alpha / math.sqrt(width)) * lengths.to(output.device, output.dtype)[:, None].rsqrt()
        if output.shape[:2] == tokens.shape and output.shape[:2] != (1, len(lengths)):
            return output + output.new_zeros(output.shape).index_put((read.to(output.device),), noise)
        if output.shape[1] != len(noise):
            raise ConfigError(
                f"model.neftune_alpha = {alpha:g}: {type(model).__name__} looks up embeddings of the shape "
                f"{tuple(output.shape)} in a batch of {tuple(tokens.shape)} tokens, and which is whose is unknown; "
                "leave model.neftune_alpha out"
            )
        return output + noise[None]

    hook: Any = embeddings.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


_COMPILED: WeakKeyDictionary[nn.Module, Callable[..., Any]] = WeakKeyDictionary()
"""Model → what compiles the function of one of its blocks; copies of a model have no entry."""


def use_compiler(model: PreTrainedModel, backend: str) -> None:
    """Let `compiled` compile the blocks of `model`, after a trial on a small function.

    Raises:
        ConfigError: the backend does not exist or cannot run on this machine.
    """
    try:
        torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.zeros(2, device=model.device))
    except Exception as error:  # of any compiler
        raise ConfigError(
            f"model.compile = {backend!r}: torch.compile cannot use it on this machine: {first_line(error)}; known are "
            f"{', '.join(torch.compiler.list_backends())}; leave it out to run the model as it is"
        ) from error
    functions: dict[type[nn.Module], Callable[..., object]] = {}

    def compile_for(kind: type[nn.Module]) -> Callable[..., Any]:
        if kind not in functions:
            functions[kind] = torch.compile(kind.forward, backend=backend, dynamic=True)
        return functions[kind]

    _COMPILED[model] = compile_for


def is_compiled(model: nn.Module) -> bool:
    """Return whether `use_compiler` was called for this model."""
    return model in _COMPILED


@contextmanager
def compiled(model: PreTrainedModel) -> Iterator[None]:
    """Run the blocks of `model` compiled inside the context, if `use_compiler` was called.

    Outside it, as in sampling, whose shapes change with every token, the blocks run as they are.
    """
    compile_for = _COMPILED.get(model)
    if compile_for is None:
        yield
        return
    blocks: list[Any] = [block for block in blocks_of(model) if "forward" not in vars(block)]
    for block in blocks:
        block.forward = MethodType(compile_for(type(block)), block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


class ModelOutputs(NamedTuple):
    """Outputs of a model and its heads for N chosen tokens.

    Attributes:
        logprobs: float32[N].
        entropy: float32[N] or None, the entropy of each token's distribution; only if requested.
        logits: float[N, V] or None, the logits that predict each token; only if requested.
        values: float32[N] or None, the value of the state before each token.
        heads: outputs of the further heads for each token, float[..., N] by name.
    """

    logprobs: Tensor
    entropy: Tensor | None
    logits: Tensor | None
    values: Tensor | None = None
    heads: Mapping[str, Tensor] = MappingProxyType({})


def join_outputs(parts: Sequence[ModelOutputs], order: Tensor) -> ModelOutputs:
    """Concatenate the outputs of the parts of a batch and reorder the N tokens by `order`, long[N]."""

    def joined(each: Sequence[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(list(each), dim).index_select(dim, order)

    def joined_if_any(each: Sequence[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in each if tensor is not None]
        return joined(found) if found else None

    return ModelOutputs(
        joined([part.logprobs for part in parts]),
        joined_if_any([part.entropy for part in parts]),
        joined_if_any([part.logits for part in parts]),
        joined_if_any([part.values for part in parts]),
        {name: joined([part.heads[name] for part in parts], -1) for name in parts[0].heads},
    )


def run_in_groups(
    layout: InputLayout,
    run: Callable[[Tensor, Tensor, Tensor], ModelOutputs],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> ModelOutputs:
    """Call `run` on a batch, or, if the layout pads, on groups of sequences of similar length."""
    if layout.pads and layout.speed.length_groups:
        return in_groups(run, join_outputs, tokens, mask, action_mask)
    return run(tokens, mask, action_mask)


class ActorCritic(ModelModule):
    """The model and its heads: one forward pass computes everything that trains, also when the module is wrapped.

    Args:
        model: the language model.
        layout: builds the model's inputs from a batch.
        value: the value function; None without one.
        heads: further heads on the model's trunk, each of which becomes the submodule of its name.
        trunk: cache of the frozen bottom blocks; None without frozen blocks.
        logit_map: what the model does to its head's logits; None if log-probs need all logits
            (`rlcore_transformers.models.policy_parts`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: InputLayout,
        *,
        value: ValueSource | None = None,
        heads: Mapping[str, nn.Module] = MappingProxyType({}),
        trunk: FrozenTrunk | TrunkFollower | None = None,
        logit_map: LogitMap | None = None,
    ) -> None:
        super().__init__()
        self.model, self.layout, self.value, self.trunk = model, layout, value, trunk
        self.logit_map, self.head_names = logit_map, tuple(heads)
        for name, head in heads.items():
            if not name.isidentifier() or hasattr(self, name):
                raise ModelError(f"heads: {name!r} cannot be the name of a head: choose another identifier")
            self.add_module(name, head)

    @property
    def heads(self) -> dict[str, Any]:
        """Return the further heads by name."""
        return {name: getattr(self, name) for name in self.head_names}

    def lockstep_copy(self, memo: dict[int, object], *, every_block: bool = False) -> ActorCritic:
        """Return a copy that runs every block once in each forward pass, whatever the batch.

        Processes that divide the weights gather each block together.

        Args:
            memo: the copies of what is not copied anew, such as parameters, by the id of the original.
            every_block: run also the frozen blocks whose outputs are cached.
        """
        copied = copy.deepcopy(self, {**memo, id(self.trunk): self.trunk})
        copied.layout = self.layout.lockstep()
        copied.trunk = None if self.trunk is None or every_block else self.trunk.follower()
        return copied

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        action_mask: Tensor,
        *,
        entropy: bool = False,
        logits: bool = False,
        temperature: float = 1.0,
    ) -> ModelOutputs:
        """Compute the outputs of the chosen tokens.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], True for real tokens, which are contiguous in each row.
            action_mask: bool[B, T], True for chosen tokens.
            entropy: compute entropies too.
            logits: return logits too.
            temperature: divides the logits.
        """
        run = partial(self._run, entropy=entropy, logits=logits, temperature=temperature)
        return run_in_groups(self.layout, run, tokens, mask, action_mask)

    def _run(
        self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, entropy: bool, logits: bool, temperature: float
    ) -> ModelOutputs:
        outputs, run = run_model(
            self.model, self.layout, tokens, mask, action_mask, logit_map=self.logit_map, entropy=entropy,
            logits=logits, temperature=temperature, value=self.value, trunk=self.trunk,
        )  # fmt: skip
        values = None if self.value is None else self.value(run)
        heads: dict[str, Tensor] = {}
        for name in self.head_names:
            heads |= getattr(self, name)(run.hidden[0], run.chosen)
        return outputs._replace(values=values, heads=heads)


def run_model(
    model: PreTrainedModel,
    layout: InputLayout,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    logit_map: LogitMap | None = None,
    entropy: bool = False,
    logits: bool = False,
    temperature: float = 1.0,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | TrunkFollower | None = None,
    max_full_logits: int | None = None,
) -> tuple[ModelOutputs, ForwardPass]:
    """Run `model` over a batch; return the outputs of the chosen tokens, and the forward pass.

    Args:
        model: the language model.
        layout: builds the model's inputs.
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
        logit_map: what the model does to its head's logits; None if log-probs need all logits.
        entropy: compute entropies too.
        logits: return logits too.
        temperature: divides the logits, before log-probs and entropies are computed from them.
        value: the value function that will use this pass.
        trunk: cache of the frozen bottom blocks.
        max_full_logits: above this many chosen tokens, log-probs are computed in tiles of the vocabulary. Default:
            chosen by the memory that all logits would take.
    """
    head = model.get_output_embeddings()
    if logit_map is None or logits:
        max_full_logits = None
    elif max_full_logits is None:
        max_full_logits = rows_for_the_head(head.weight, logit_map, entropy=entropy)
    flat, run = predict(
        model, layout, tokens, mask, action_mask, value=value, trunk=trunk, max_full_logits=max_full_logits
    )
    hidden, chosen = run.hidden[0], run.chosen
    if len(flat) == len(hidden):
        flat = flat if temperature == 1.0 else flat.float() / temperature
        entropies = ops.entropy(flat) if entropy else None
        return ModelOutputs(ops.token_logprobs(flat, chosen), entropies, flat if logits else None), run
    logit_map = (logit_map or LogitMap()).at(temperature)
    scores = score_tokens(hidden, head.weight, head.bias, chosen, logit_map=logit_map, entropy=entropy)
    return ModelOutputs(scores.logprobs, scores.entropy, None), run


def predict(
    model: PreTrainedModel,
    layout: InputLayout,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | TrunkFollower | None = None,
    max_full_logits: int | None = None,
) -> tuple[Tensor, ForwardPass]:
    """Run `model` over a batch; return the logits that predict the chosen tokens, float[N, V], and the forward pass.

    With more than `max_full_logits` chosen tokens the head runs on no rows, and the logits are empty: float[0, V].
    """
    share = not (is_stochastic(model) or (value is not None and is_stochastic(value)))
    run = ForwardPass(*layout.lay_out(tokens, mask, action_mask, share=share))
    recording = value.top.recording() if isinstance(value, BranchValue) else nullcontext()

    def select_rows(hidden: Tensor) -> Tensor:
        """Pass the head only the rows that predict chosen tokens, or none if there are too many."""
        if hidden.dim() > 3:
            raise ModelError(
                f"{type(model).__name__}: its output embeddings receive hidden states of the shape "
                f"{tuple(hidden.shape)}, as of a model that predicts several tokens at once; rlcore trains models that "
                "predict the next token: choose another model"
            )
        kept = run.keep(hidden)
        run.hidden.append(kept)
        return kept[None] if max_full_logits is None or len(kept) <= max_full_logits else kept[None, :0]

    # Entered first: sequences missing from the cache are computed in a forward pass of their own.
    cached = nullcontext() if trunk is None or not share else trunk.replaying(model, run.inputs)
    changed = (noisy(model, tokens, mask, action_mask), compiled(model))
    with cached, head_reads(model.get_output_embeddings(), select_rows), recording, changed[0], changed[1]:
        logits: Tensor = model(**run.inputs).logits
    if not run.hidden:
        raise ModelError(f"{type(model).__name__} does not call its output embeddings, which rlcore requires")
    return logits.reshape(-1, logits.shape[-1]), run


@torch.no_grad()
def check_next_token(model: PreTrainedModel, layout: InputLayout) -> None:
    """Check on a small batch that the model has the form of a next-token predictor.

    Raises:
        ModelError: it predicts several tokens at each position, or does not call its output embeddings.
    """
    tokens = probe_tokens(model, 3)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    try:
        with eval_mode(model):
            predict(model, layout, tokens, mask, mask & (torch.arange(3, device=tokens.device) > 0))
    except FAILURES as error:  # a model that fails for another reason may accept the batches of the run
        if isinstance(error, ModelError):
            raise


@torch.no_grad()
def looks_ahead(model: PreTrainedModel) -> bool:
    """Return whether the outputs of `model` for a token depend on later tokens, as in encoders.

    The test: two sequences that differ only in their last token must have equal outputs before it.
    """
    tokens = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], device=model.device)
    with eval_mode(model):
        outputs = model(**padded_inputs(tokens % vocabulary_size(model), tokens >= 0))[0][:, :3].float()
    bound = tolerance(model, low_precision=1e-2) * outputs.abs().max()
    return bool((outputs[0] - outputs[1]).abs().max() > bound)
