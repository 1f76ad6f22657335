"""The model of a run: built with the chosen architecture when the trainer asks for it, and kept as it was before."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import attrs
import torch

from rlcore.checkpoints.checkpoint import save_beside
from rlcore.checkpoints.claim import Claim
from rlcore.checkpoints.manifest import write_manifest
from rlcore.checkpoints.run_folder import RunDir
from rlcore.components import LANGUAGE_MODEL, SCORER
from rlcore.config import evolve
from rlcore.errors import ConfigError, ModelError
from rlcore.plugins.choice import Choice
from rlcore.protocols import ArchitectureTraits, Learner, Policy, Restorable, SizedVocabulary
from rlcore.ranks import Ranks
from rlcore.sampling import takes
from rlcore.training.inputs import Inputs

KINDS = {"policy": LANGUAGE_MODEL, "scorer": SCORER}
"""Kind that a trainer asks for → what the architecture must build; any other kind is what its `builds` states."""
POLICY_PARTS = {"value_head": False, "reference": False}
REMEDIES = {
    "policy": "leave it out, or name another trainer",
    "scorer": "set model.architecture=sequence_scorer",
}


@attrs.define(eq=False)
class Models:
    """Builds the model that a run trains, and others to compare it with.

    Attributes:
        kind: the kind of `learner`, as the trainer named it; empty before it is built.
        built: the model that the run trains; None before it is built.
    """

    _architecture: Choice
    _inputs: Inputs
    _place: Claim
    _ranks: Ranks
    kind: str = ""
    built: Learner | None = None

    def build(self, kind: str = "policy", **parts: object) -> Any:
        """Build the model that the run trains, on this process's device.

        Args:
            kind: "policy" for a language model, "scorer" for a model that scores sequences, or what the architecture
                states in its attribute `builds`, such as "an image pipeline". Only a policy samples text.
            parts: what the trainer needs besides the model, passed to the architecture: of a policy `value_head=True`,
                `reference=True` to keep a reference policy with the present weights, `heads={name: builder}`, or a part
                of the architecture's own.

        Raises:
            ModelError: the model cannot be used, or the architecture builds another kind or has no such part.
        """
        component, wanted = self._architecture.component, KINDS.get(kind, kind)
        target: Any = component.target()
        if (found := ArchitectureTraits(target).kind) != wanted:
            remedy = REMEDIES.get(kind, "leave it out, or name an architecture that builds one")
            raise ModelError(
                f"model.architecture = '{component.name}': builds {found}, and this trainer trains {wanted}: {remedy}"
            )
        for part in parts.keys() - POLICY_PARTS:
            if not takes(target, part):
                raise ModelError(
                    f"model.architecture = '{component.name}' ({component.dist} {component.version}): has no part "
                    f"'{part}', which this trainer needs; choose another architecture, such as causal_lm"
                )
        built = self._start(target, **(POLICY_PARTS | parts if kind == "policy" else parts))
        self._keep(built, is_needed=bool(parts.get("reference")))
        self.built, self.kind = self._architecture.wrap(built), kind
        self.built.to(self._ranks.device)
        return self.built

    def frozen(self, model: object, *, padded: bool = False) -> Policy:
        """Build another model with the architecture and tokenizer of the run, to compare the policy with.

        Nothing of it trains, and it is in evaluation mode.

        Args:
            model: a hub id, folder or module with the policy's vocabulary.
            padded: accept another number of rows in its table of tokens, of which each tokenizer's token has one.

        Raises:
            ModelError: the model cannot be used, or has another vocabulary.
        """
        options = self._architecture.options
        own = [name for name in ("peft", "unfrozen_layers", "critic", "revision") if hasattr(options, name)]
        options = evolve(options, **dict.fromkeys(own)) if own else options
        other: Policy = self._architecture.component.target()(model, options, tokenizer=self.policy.tokenizer)
        sizes = [each.vocabulary_size for each in (self.policy, other) if isinstance(each, SizedVocabulary)]
        if len(set(sizes)) > 1 and not padded:
            raise ModelError(
                f"{model!r:.80}: has a vocabulary of {sizes[1]} tokens, the policy one of {sizes[0]}; it cannot score "
                "the policy's tokens: choose a model of the same family"
            )
        other.to(self._ranks.device)
        other.module.eval()
        other.module.requires_grad_(False)
        is_mixed = self._ranks.mixed_precision != "no"
        other.use_forward(other.module, autocast=self._ranks.accelerator.autocast if is_mixed else nullcontext)
        return other

    @property
    def learner(self) -> Learner:
        """Return the model that the run trains.

        Raises:
            ConfigError: the trainer has not built it yet.
        """
        if self.built is None:
            raise ConfigError("a trainer must call run.build before it asks for prompts or samples")
        return self.built

    @property
    def policy(self) -> Policy:
        """Return the policy that the run trains.

        Raises:
            ConfigError: the trainer has not built it yet, or trains a model that generates no text.
        """
        if self.kind != "policy":
            raise ConfigError(f"this run trains a {type(self.prompted).__name__}, which generates no text")
        return cast("Policy", self.built)

    @property
    def prompted(self) -> Learner:
        """Return the model that the run trains if prompts have a meaning for it: a policy, or a model of another kind.

        Raises:
            ConfigError: the trainer has not built it yet, or it scores sequences.
        """
        if self.kind == "scorer":
            raise ConfigError("this run trains a model that scores sequences, which generates no text")
        return self.learner

    @property
    def has_policy(self) -> bool:
        """Whether the run trains a policy, which is built."""
        return self.kind == "policy"

    @property
    def is_full_precision(self) -> bool:
        """Return whether forward passes of the policy run in float32 throughout."""
        is_quantized = getattr(self._architecture.options, "quantization", None) is not None
        weights = next(self.policy.module.parameters())
        return self._ranks.mixed_precision == "no" and weights.dtype == torch.float32 and not is_quantized

    def _start(self, build: Any, **parts: Any) -> Any:
        """Call an architecture; a resumed run passes it the model before training that the run has kept."""
        spec, start = self._inputs.model, self._place.start
        if start is not None and not _is_name(spec):
            if takes(build, "start"):
                parts["start"] = start
            else:
                spec = start
        return build(spec, self._architecture.options, tokenizer=self._inputs.tokenizer, **parts)

    def _keep(self, built: Learner, *, is_needed: bool) -> None:
        """Save the model before training if resuming needs it and no name refers to it."""
        restorable = built if isinstance(built, Restorable) else None
        is_needed = is_needed or (restorable is not None and restorable.saves_part)
        is_known = restorable is not None or takes(self._architecture.component.target(), "start")
        if not is_needed or not is_known or _is_name(self._inputs.model):
            return
        kept = RunDir(self._place.path).start

        def save(folder: Path) -> None:
            (built.save_pretrained if restorable is None else restorable.save_start)(folder)
            write_manifest(folder, step=0, score=None, further={})

        def keep() -> None:
            if self._place.checkpoint is None or not kept.exists():
                save_beside(save, kept)

        self._ranks.on_main(keep)
        if restorable is not None:
            restorable.note_start(kept)


def _is_name(spec: object) -> bool:
    """Return whether a model is given as a hub id or folder, from which a resumed run loads it again."""
    return isinstance(spec, str | os.PathLike)
