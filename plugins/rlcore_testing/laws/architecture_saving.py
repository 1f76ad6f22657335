"""Laws of the reference and of saving and loading; part of `rlcore_testing.laws.architectures`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

import torch

from rlcore.types import Trajectories
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.policies import (
    CLOSE,
    FOLDERS,
    build,
    examples,
    is_of_transformers,
    make_dialogues,
    perturb,
    require_close,
    saved,
    score,
)  # fmt: skip
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.hub import quiet_transformers

ARCHITECTURES = "architectures"
TEXT = "abz"
IDS = [0, 1, 25]
"""Token ids of TEXT in the kit's tokenizer."""
SEQUENCES = ([3, 4, 5, 6, 7], [8, 9, 10])


@law(ARCHITECTURES)
def a_reference_equals_the_start(subject: Subject) -> None:
    """After `build(reference=True)`, log-probs and logits of the reference equal the policy's."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make(), value_head=True, reference=True)
        outputs, kept = score(policy, batch, logits=True), policy.reference_score(batch, logits=True)
        advice = "use a copy of the initial policy as the reference"
        require_close(
            kept.logprobs, outputs.logprobs, "`reference_score(...).logprobs` at first", advice, tolerance=1e-5
        )
        require_close(kept.logits, outputs.logits, "`reference_score(...).logits` at first", advice, tolerance=1e-4)


@law(ARCHITECTURES)
def a_reference_does_not_change(subject: Subject) -> None:
    """Training and loading do not change the reference's outputs, which never require gradients."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make(), value_head=True, reference=True)
        before = policy.reference_score(batch).logprobs
        require(
            not before.requires_grad,
            "`reference_score` should record no graph; it does; run it under torch.no_grad()",
        )
        perturb(policy)
        advice = "give the reference its own copy of all trainable weights"
        after = policy.reference_score(batch).logprobs
        require_close(after, before, "`reference_score` after the policy was trained", advice, tolerance=CLOSE)
        with saved(policy) as folder:
            other = build(subject, make(), value_head=True, reference=True)
            other.load_pretrained(folder)
            loaded = other.reference_score(batch).logprobs
        advice = "load_pretrained must change the policy only; the reference is the initial policy"
        require_close(loaded, before, "`reference_score` after load_pretrained", advice, tolerance=CLOSE)


@law(ARCHITECTURES)
def the_module_excludes_the_reference(subject: Subject) -> None:
    """`policy.module` has the same parameters and buffers with and without a reference."""
    for make in examples(subject):
        alone, both = (
            {
                name: tuple(each.shape)
                for name, each in build(subject, make(), reference=kept).module.state_dict().items()
            }
            for kept in (False, True)
        )
        differ = sorted(name for name in alone.keys() | both.keys() if alone.get(name) != both.get(name))
        require(
            not differ,
            f"policy.module should be the same with reference=True; it differs in {', '.join(differ[:5])}; keep the "
            "reference outside of it, on the policy",
        )


@law(ARCHITECTURES, when=is_of_transformers)
def the_seed_determines_random_weights(subject: Subject) -> None:
    """Random weights and heads of a policy built from a model configuration are determined by torch's seed."""
    batch = make_dialogues()
    for make in examples(subject):
        first, second = (build(subject, make().config, value_head=True) for _ in range(2))
        outputs, again = score(first, batch), score(second, batch)
        for name in ("logprobs", "values"):
            require_close(
                getattr(again, name), getattr(outputs, name), f"{name} of a policy built again after the same seed",
                "draw random weights from torch's global generator, in a fixed order", tolerance=CLOSE,
            )  # fmt: skip


@law(ARCHITECTURES, when=is_of_transformers)
def a_saved_folder_equals_its_model(subject: Subject) -> None:
    """A policy built from a folder that plain transformers saved equals one built from the model in memory.

    It has the folder's tokenizer.
    """
    batch = make_dialogues()
    for make in examples(subject):
        expected = score(build(subject, make()), batch).logprobs
        with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
            with quiet_transformers():
                make().save_pretrained(folder)
            make_tokenizer().save_pretrained(folder)
            policy = build(subject, folder, tokenizer=FOLDERS)
        require_close(
            score(policy, batch).logprobs, expected, "logprobs of a policy built from a folder", "load its weights"
        )
        seen = policy.tokenizer(TEXT).input_ids
        require(seen == IDS, f"the folder's tokenizer should encode {TEXT!r} as {IDS}; it gives {seen}; load it")


@law(ARCHITECTURES)
def loading_restores_everything(subject: Subject) -> None:
    """A policy that loads another's saved folder has the same parameters, buffers, log-probs and values."""
    batch = make_dialogues("both")
    advice = "save every parameter and buffer in save_pretrained, heads in a separate file, and load them"
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        perturb(policy)
        with saved(policy) as folder:
            other = build(subject, make(), value_head=True)
            with torch.no_grad():  # the initial weights must not be right by chance
                for parameter in other.module.parameters():
                    if parameter.requires_grad:
                        parameter.mul_(0.5)
            other.load_pretrained(folder)
        weights = other.module.state_dict()
        for name, weight in policy.module.state_dict().items():
            require_close(weights.get(name), weight, f"'{name}' after load_pretrained", advice, tolerance=CLOSE)
        outputs, expected = score(other, batch), score(policy, batch)
        for name in ("logprobs", "values"):
            require_close(
                getattr(outputs, name),
                getattr(expected, name),
                f"{name} after load_pretrained",
                advice,
                tolerance=CLOSE,
            )


@law(ARCHITECTURES)
def loading_changes_parameters_in_place(subject: Subject) -> None:
    """`load_pretrained` copies into the existing parameters, which an optimizer may hold, and keeps `requires_grad`."""
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        before = {name: (id(each), each.requires_grad) for name, each in policy.module.named_parameters()}
        with saved(policy) as folder:
            policy.load_pretrained(folder)
        after = {name: (id(each), each.requires_grad) for name, each in policy.module.named_parameters()}
        changed = sorted(name for name in before if after.get(name) != before[name])
        require(
            not changed,
            f"parameters should stay the same objects, with the same requires_grad, in load_pretrained; "
            f"{', '.join(changed[:5])} did not; copy the weights in place, as `load_state_dict` does",
        )


@law(ARCHITECTURES)
def loading_raises_the_version(subject: Subject) -> None:
    """`load_pretrained` raises `policy.version`, and an updater can raise it too."""
    for make in examples(subject):
        policy = build(subject, make())
        with saved(policy) as folder:
            before = policy.version
            policy.load_pretrained(folder)
        require(
            policy.version > before,
            f"policy.version should rise with load_pretrained; it was {before} and is {policy.version}; add 1 in it, "
            "so that samplers that keep a copy of the weights renew it",
        )
        before = policy.version
        policy.version += 1
        require(
            policy.version == before + 1,
            f"policy.version should be an attribute that an updater raises; after `+= 1` it is {policy.version} "
            f"instead of {before + 1}; make it a plain attribute",
        )


@law(ARCHITECTURES, when=is_of_transformers)
def plain_transformers_loads_what_was_saved(subject: Subject) -> None:
    """Plain transformers, in a new process without plugins, loads model and tokenizer from a saved folder.

    It loads an exported folder too. The model's logits equal the policy's, and no weight is missing or unexpected.
    """
    policies = [build(subject, make(), value_head=True, reference=True) for make in examples(subject)]
    with ExitStack() as stack:
        for policy in policies:
            perturb(policy)
        folders = [
            str(stack.enter_context(saved(policy, by))) for policy in policies for by in ("save_pretrained", "export")
        ]
        found = call_in_new_process(
            "rlcore_testing.rig.reference_transformers:read_folders",
            {"folders": folders, "sequences": [list(each) for each in SEQUENCES], "text": TEXT},
            what="loading a saved folder with transformers alone",
        )
    for policy, seen in zip([each for each in policies for _ in range(2)], found, strict=True):
        for what in ("missing", "unexpected"):
            require(
                not seen[what],
                f"{what} weights in the saved folder: {', '.join(seen[what][:5])}; save the model as transformers "
                "does, and heads in a separate file",
            )
        ids = seen["tokens"]
        require(ids == IDS, f"the saved tokenizer should encode {TEXT!r} as {IDS}; it gives {ids}; save it too")
        for tokens, logits in zip(SEQUENCES, seen["logits"], strict=True):
            batch = Trajectories.stack([tokens], [[t > 0 for t in range(len(tokens))]])
            require_close(
                torch.tensor(logits)[:-1],
                score(policy, batch, logits=True).logits,
                "logits of plain transformers after loading the saved folder",
                "save the weights that the policy computes with",
            )
