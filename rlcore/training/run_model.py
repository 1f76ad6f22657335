"""Build the model of a run with the chosen architecture, and keep the model before training."""

from __future__ import annotations

import inspect
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from rlcore.checkpoints.claim import Claim
from rlcore.checkpoints.manifest import write_manifest
from rlcore.checkpoints.run_folder import RunDir
from rlcore.components import LANGUAGE_MODEL, SCORER, Component, kind_built
from rlcore.config import evolve
from rlcore.errors import ModelError
from rlcore.plugins.choice import Choice
from rlcore.protocols import Learner, Policy, Restorable, SequenceScorer, SizedVocabulary
from rlcore.ranks import Ranks
from rlcore.training.inputs import Inputs
from rlcore.training.resume import save_beside


@attrs.frozen(eq=False)
class ModelMaker:
    """Builds the model of a run.

    Attributes:
        architecture: the chosen architecture.
        inputs: the user's model and tokenizer.
        place: the run's folder.
        ranks: the processes of the run.
    """

    architecture: Choice
    inputs: Inputs
    place: Claim
    ranks: Ranks

    def policy(self, *, value_head: bool, reference: bool, q_heads: int) -> Policy:
        """Build a policy with the parts that the trainer needs."""
        component = self.architecture.component
        build: Any = component.target()
        if (found := kind_built(build)) != LANGUAGE_MODEL:
            raise ModelError(
                f"model.architecture = '{component.name}': builds {found}, and this trainer trains a language model: "
                "leave it out, or name another trainer"
            )
        if q_heads:
            _check_q_heads(component, build)
        parts = {"value_head": value_head, "reference": reference, **({"q_heads": q_heads} if q_heads else {})}
        policy: Policy = self._build(build, **parts)
        self._keep(policy, is_needed=reference)
        wrapped: Policy = self.architecture.wrap(policy)
        return wrapped

    def frozen(self, model: Any, policy: Policy) -> Policy:
        """Build another model that scores the tokens of `policy` and does not train.

        Raises:
            ModelError: the model cannot be used, or has another vocabulary.
        """
        options = self.architecture.options
        own = [name for name in ("peft", "unfrozen_layers", "critic", "revision") if hasattr(options, name)]
        build: Any = self.architecture.component.target()
        other: Policy = build(
            model, evolve(options, **dict.fromkeys(own)) if own else options, tokenizer=policy.tokenizer
        )
        sizes = [each.vocabulary_size for each in (policy, other) if isinstance(each, SizedVocabulary)]
        if len(set(sizes)) > 1:
            raise ModelError(
                f"{model!r:.80}: has a vocabulary of {sizes[1]} tokens, the policy one of {sizes[0]}; it cannot score "
                "the policy's tokens: choose a model of the same family"
            )
        other.to(self.ranks.device)
        other.module.eval()
        other.module.requires_grad_(False)
        is_mixed = self.ranks.mixed_precision != "no"
        other.use_forward(other.module, autocast=self.ranks.accelerator.autocast if is_mixed else nullcontext)
        return other

    def scorer(self) -> SequenceScorer:
        """Build a scorer."""
        component = self.architecture.component
        build: Any = component.target()
        if (found := kind_built(build)) != SCORER:
            raise ModelError(
                f"model.architecture = '{component.name}': builds {found}, and this trainer trains a model "
                "that scores sequences: set model.architecture=sequence_scorer"
            )
        scorer: SequenceScorer = self._build(build)
        self._keep(scorer, is_needed=False)
        wrapped: SequenceScorer = self.architecture.wrap(scorer)
        return wrapped

    def learner(self, kind: str) -> Learner:
        """Build a model of another kind, which is `kind`."""
        component = self.architecture.component
        build: Any = component.target()
        if (found := kind_built(build)) != kind:
            raise ModelError(
                f"model.architecture = '{component.name}': builds {found}, and this trainer trains {kind}: leave it "
                "out, or name an architecture that builds one"
            )
        built: Learner = build(self.inputs.model, self.architecture.options, tokenizer=self.inputs.tokenizer)
        wrapped: Learner = self.architecture.wrap(built)
        return wrapped

    def _build(self, build: Any, **parts: Any) -> Any:
        """Call an architecture; a resumed run passes it the model before training that the run has kept."""
        spec, start = self.inputs.model, self.place.start
        if start is not None and not _is_name(spec):
            if _takes(build, "start"):
                parts["start"] = start
            else:
                spec = start
        return build(spec, self.architecture.options, tokenizer=self.inputs.tokenizer, **parts)

    def _keep(self, built: Learner, *, is_needed: bool) -> None:
        """Save the model before training if resuming needs it and no name refers to it."""
        restorable = built if isinstance(built, Restorable) else None
        is_needed = is_needed or (restorable is not None and restorable.saves_part)
        is_known = restorable is not None or _takes(self.architecture.component.target(), "start")
        if not is_needed or not is_known or _is_name(self.inputs.model):
            return
        kept = RunDir(self.place.path).start

        def save(folder: Path) -> None:
            (built.save_pretrained if restorable is None else restorable.save_start)(folder)
            write_manifest(folder, step=0, score=None, further={})

        def keep() -> None:
            if self.place.checkpoint is None or not kept.exists():
                save_beside(save, kept)

        self.ranks.on_main(keep)
        if restorable is not None:
            restorable.note_start(kept)


def _is_name(spec: Any) -> bool:
    """Return whether a model is given as a hub id or folder, from which a resumed run loads it again."""
    return isinstance(spec, str | os.PathLike)


def _takes(build: Any, name: str) -> bool:
    """Return whether an architecture takes an optional argument; not all architectures do."""
    parameters = inspect.signature(build).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _check_q_heads(component: Component[Any], build: Any) -> None:
    """Check that an architecture takes the argument `q_heads`."""
    if not _takes(build, "q_heads"):
        raise ModelError(
            f"model.architecture = '{component.name}' ({component.dist} {component.version}): has no Q-heads, which "
            "this trainer needs; choose another architecture, such as causal_lm"
        )
