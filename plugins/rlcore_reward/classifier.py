"""Models with a score head (`AutoModelForSequenceClassification`, one label), loaded or made from a language model.

Also in this file: the padding token of a sequence classifier, by which plain `transformers` finds the last token of a
sequence.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from typing import Any, Literal, cast

import attrs
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlcore.config import ConfigOnly
from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore.ops import is_stochastic
from rlcore.types import to_device
from rlcore_transformers.models import loading
from rlcore_transformers.models.forward import ModelModule
from rlcore_transformers.models.freezing import is_encoder_decoder, vocabulary_size
from rlcore_transformers.models.hub import base_of, first_line, quiet_transformers
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig, TransformerConfig
from rlcore_transformers.models.peft.inject import activate, attach, heads_of, unwrap
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.activations import probe_tokens, probing, require_same
from rlcore_transformers.models.speed.packing import longest_packed, pack

HEAD = "score"
"""Name of the head of the decoders of `transformers`."""
HEAD_STD = 0.02
"""Standard deviation of a new head's weights where the model's configuration names none."""


@attrs.frozen
class ClassifierKind:
    """A kind of classifier of `transformers`.

    Attributes:
        loader: the Auto class that loads it.
        suffix: how the names of its classes end.
        num_labels: its labels.
        unit: what it gives these labels to, for errors.
        problem_type: entry of its configuration.
    """

    loader: Any
    suffix: str
    num_labels: int
    unit: str
    problem_type: Literal["regression"] | None = None


SEQUENCES = ClassifierKind(
    AutoModelForSequenceClassification, "ForSequenceClassification", 1, "sequence", problem_type="regression"
)
"""One number for each sequence."""


class SequenceClassifier(ModelModule):
    """A sequence classifier with one label that takes sequences padded on any side.

    It calls the model of `transformers` as a plain user would, on sequences padded on the right with the padding token
    of the model's configuration, by which the model finds the token whose hidden state is scored: the last one with
    another id. If the model allows packing, its trunk runs on the real tokens alone, and the head on that token.

    Args:
        model: the classifier.
        speed: which techniques of speed are switched on.

    Attributes:
        longest: tokens of the longest sequence that runs packed; 0 if none.
    """

    def __init__(self, model: PreTrainedModel, speed: SpeedConfig = ALL_ON) -> None:
        super().__init__()
        self.model, self.speed, self.longest = model, speed, 0
        takes = inspect.signature(type(model).forward).parameters
        self._options = {"use_cache": False} if "use_cache" in takes else {}

    def use_packing(self) -> int:
        """Run packed from now on, and return the tokens of the longest sequence that may be packed.

        Raises:
            TechniqueRefused: the model does not allow it, or scores then differ; it then runs padded.
        """
        trunk: Any = self.model.base_model
        if trunk is self.model or not isinstance(getattr(self.model, HEAD, None), nn.Module):
            raise TechniqueRefused(f"{type(self.model).__name__} has no head called {HEAD!r} on a trunk")
        self.longest, longest = 0, longest_packed(trunk)
        tokens = probe_tokens(self.model, 5)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        mask[1, 3:] = False
        with probing(self.model):
            packed, padded = self._packed(tokens, mask), self._padded(tokens, mask)
            require_same(self.model, "packed scores", packed, padded, offset=1.0)
        self.longest = longest
        return longest

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the score of each sequence: float[B].

        Args:
            tokens: long[B, T].
            mask: bool[B, T], True for real tokens, which are contiguous in each row; the other tokens are not read.
        """
        if self.longest and (tokens.shape[1] <= self.longest or int(mask.sum(1).max()) <= self.longest):
            return self._packed(tokens, mask)
        return self._padded(tokens, mask)

    def _padded(self, tokens: Tensor, mask: Tensor) -> Tensor:
        order = mask.int().argsort(dim=1, descending=True, stable=True)
        width = int(mask.sum(1).max())
        ids, real = tokens.gather(1, order)[:, :width], mask.gather(1, order)[:, :width]
        ids = ids.masked_fill(~real, int(self.model.config.pad_token_id))
        logits: Tensor = self.model(input_ids=ids, attention_mask=real.long(), **self._options).logits
        return logits[:, 0].float()

    def _packed(self, tokens: Tensor, mask: Tensor) -> Tensor:
        device = tokens.device
        tokens, mask = tokens.cpu(), mask.cpu()
        columns = torch.arange(1, tokens.shape[1] + 1)
        # A sequence of padding tokens alone is scored at its first token.
        weight = columns * (mask & (tokens != int(self.model.config.pad_token_id)))
        last = torch.where(weight.any(1), weight.argmax(1), mask.int().argmax(1))
        share = not is_stochastic(self.model)
        packed = pack(tokens, mask, share=share, device=device, speed=self.speed)
        rows = to_device(packed.node[(columns - 1 == last[:, None])[mask]], device)
        hidden: Tensor = self.model.base_model(**packed.inputs)[0][0]
        logits: Tensor = self.model.get_submodule(HEAD)(hidden[rows])
        return logits[:, 0].float()


def load_classifier(
    spec: loading.ModelSpec, config: TransformerConfig, kind: ClassifierKind = SEQUENCES
) -> PreTrainedModel:
    """Load a classifier and put it in evaluation mode; a language model gets a new head.

    Args:
        spec: hub id or folder of a classifier, of a language model or of an adapter for one; a `PretrainedConfig`
            (random weights); or a model in memory, whose weights are then trained in place.
        config: options of the architecture.
        kind: what is classified; by default, sequences with one label.

    Raises:
        ModelError: the model cannot be loaded, has other labels, or its family has no such classifier.
    """
    spec = unwrap(spec)
    if isinstance(spec, PreTrainedModel):
        _check(spec.config, type(spec).__name__, kind)
        model = spec if is_classifier(spec, kind) else _with_head(spec, kind)
        if config.attention is not None:
            loading.set_attention(model, config.attention)
    elif isinstance(spec, PretrainedConfig):
        model = _from_config(spec, config, kind)
    elif isinstance(spec, (str, os.PathLike)):
        model = _from_name(os.fspath(spec), config, kind)
    else:
        raise ModelError(f"model = {spec!r:.80}: give a hub id, a folder, a PretrainedConfig or a PreTrainedModel")
    model.config.num_labels, model.config.problem_type = kind.num_labels, kind.problem_type
    loading.align(model)
    model.eval()
    return model


def is_classifier(model: PreTrainedModel, kind: ClassifierKind = SEQUENCES) -> bool:
    """Return whether a model is a classifier of a kind."""
    return type(model).__name__.endswith(kind.suffix)


def has_head(spec: loading.ModelSpec, config: TransformerConfig, kind: ClassifierKind = SEQUENCES) -> bool:
    """Return whether a model, folder or hub id has a head of its own; True for an adapter, which may hold one.

    Raises:
        ModelError: the configuration cannot be loaded.
    """
    if isinstance(spec, PreTrainedModel):
        return is_classifier(spec, kind)
    if isinstance(spec, PretrainedConfig) or base_of(os.fspath(spec)):
        return True
    about: PretrainedConfig = loading.from_pretrained(AutoConfig, os.fspath(spec), config)
    return any(each.endswith(kind.suffix) for each in about.architectures or ())


def _from_name(name: str, config: TransformerConfig, kind: ClassifierKind) -> PreTrainedModel:
    base = base_of(name)
    wanted = type(name)(base) if base and isinstance(name, ConfigOnly) else base or name
    about: PretrainedConfig = loading.from_pretrained(AutoConfig, wanted, config)
    _check(about, name, kind)
    if isinstance(wanted, ConfigOnly):
        model = _from_config(about, config, kind)
    else:
        model = loading.from_pretrained(kind.loader, wanted, config, num_labels=kind.num_labels)
    if base:
        attach(model, name)
    else:
        activate(model)
    return model


def _from_config(spec: PretrainedConfig, config: TransformerConfig, kind: ClassifierKind) -> PreTrainedModel:
    about = copy.deepcopy(spec)
    _check(about, type(spec).__name__, kind)
    about.num_labels = kind.num_labels
    try:
        with quiet_transformers():
            model: PreTrainedModel = kind.loader.from_config(
                about, trust_remote_code=config.trust_remote_code, **loading.build_options(config)
            )
    except (ValueError, ImportError) as error:
        raise ModelError(
            f"model = {type(spec).__name__}: cannot be built as a {kind.unit} classifier: {first_line(error)}"
        ) from error
    return model


def _check(config: PretrainedConfig, name: str, kind: ClassifierKind) -> None:
    """Check that a model can be such a classifier.

    Raises:
        ModelError: it is one with other labels, or an encoder-decoder.
    """
    is_one = any(each.endswith(kind.suffix) for each in getattr(config, "architectures", None) or ())
    if is_one and config.num_labels != kind.num_labels:
        wanted = "a score is one number" if kind.num_labels == 1 else f"{kind.num_labels} are needed"
        raise ModelError(
            f"{name}: is a classifier with {config.num_labels} labels, and {wanted}: give a reward model "
            f"(num_labels={kind.num_labels}), or a language model, which gets a new head"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name}: is an encoder-decoder ({config.model_type}); give a decoder or an encoder")


def _with_head(model: PreTrainedModel, kind: ClassifierKind) -> PreTrainedModel:
    """Return a classifier on the trunk of a language model, whose weights it shares, with a new head."""
    trunk: object = getattr(model, model.base_model_prefix, None)
    if trunk is None or is_encoder_decoder(model) or getattr(model, "peft_config", None):
        why = "it carries an adapter" if getattr(model, "peft_config", None) else "its trunk cannot be found"
        raise ModelError(f"{type(model).__name__}: no score head can be added, because {why}: give a plain model")
    about = copy.deepcopy(model.config)
    about.num_labels = kind.num_labels
    try:
        with torch.device("meta"), quiet_transformers():
            made: PreTrainedModel = kind.loader.from_config(about)
    except ValueError as error:
        raise ModelError(f"{type(model).__name__}: has no {kind.unit} classifier: {first_line(error)}") from error
    setattr(made, made.base_model_prefix, trunk)
    for head in (made.get_submodule(name) for name in heads_of(made)):
        head.to_empty(device="cpu")
        for part in head.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=getattr(about, "initializer_range", HEAD_STD))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        head.to(device=model.device, dtype=model.dtype)
    made.name_or_path = model.name_or_path
    return made


PADDING = "<|pad|>"
"""A padding token that is added to a vocabulary without one."""
SPARE = re.compile(r"[<\[(|]+[\w ]*(pad|reserved|unused)[\w ]*[>\])|]+", re.IGNORECASE)
"""Tokens that a vocabulary has for padding or holds in reserve, such as `<pad>` or `<|reserved_special_token_0|>`."""


def settle_padding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, may_grow: bool
) -> PreTrainedTokenizerBase:
    """Return the tokenizer with a padding token that is not EOS, and set it in the model's configuration.

    The tokenizer's own is kept if it is not EOS. Otherwise, in this order: a token of the vocabulary for padding or in
    reserve; a new token, if the model has an embedding to spare; a new token and a new embedding. If none is possible,
    the padding token stays EOS, with a warning: the score is then that of the token before EOS, in training as in plain
    `transformers`.

    Args:
        model: the classifier.
        tokenizer: not changed; a copy is returned if its padding token is another one.
        may_grow: whether the model's embeddings may get a row more.
    """
    ends = {tokenizer.eos_token_id, *_ids(model.config.get_text_config().eos_token_id)}
    size = vocabulary_size(model)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id in ends or tokenizer.pad_token_id >= size:
        tokenizer = copy.deepcopy(tokenizer)
        spare = _spare(tokenizer, ends, size)
        if spare is not None:
            tokenizer.pad_token = spare
        elif len(tokenizer) < size or may_grow:
            tokenizer.add_special_tokens({"pad_token": PADDING})
            _grow(model, len(tokenizer))
        else:
            get_logger("models").warning(
                "the vocabulary has no token for padding but EOS: the score is that of the token before EOS",
                eos=tokenizer.eos_token,
            )
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def _spare(tokenizer: PreTrainedTokenizerBase, ends: set[int | None], size: int) -> str | None:
    """Return a token of the vocabulary that pads or is in reserve; tokens for padding come first, then lower ids."""
    used = {tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens} | ends
    found = [
        ("pad" not in token.lower(), index, token)
        for token, index in tokenizer.get_vocab().items()
        if SPARE.fullmatch(token) and index < size and index not in used
    ]
    return min(found)[2] if found else None


@torch.no_grad()
def _grow(model: PreTrainedModel, size: int) -> None:
    """Give the model embeddings for `size` tokens at least; new rows, which no text uses, are zero."""
    before = vocabulary_size(model)
    if size <= before:
        return
    with quiet_transformers():
        model.resize_token_embeddings(size, mean_resizing=False)
    cast("Tensor", model.get_input_embeddings().weight)[before:] = 0.0


def _ids(given: int | list[int] | None) -> list[int]:
    return [] if given is None else [given] if isinstance(given, int) else list(given)
