"""What an architecture keeps: the reference, and a saved policy. Part of `rlcore.testing.laws.architectures`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

import torch

from rlcore.models.hub import quiet_transformers
from rlcore.testing.law import Subject, law, require
from rlcore.testing.rig.isolate import call_anew
from rlcore.testing.rig.policies import (
    CLOSE,
    FOLDERS,
    build,
    examples,
    make_dialogues,
    move,
    require_close,
    saved,
    say,
)  # fmt: skip
from rlcore.testing.small import make_tokenizer
from rlcore.types import Trajectories

ARCHITECTURES = "architectures"
TEXT = "abz"
IDS = [0, 1, 25]
"""TEXT in the tests' tokenizer."""
SEQUENCES = ([3, 4, 5, 6, 7], [8, 9, 10])


@law(ARCHITECTURES)
def a_reference_equals_the_start(subject: Subject) -> None:
    """A policy built with `reference=True` and its reference say the same at first, the logits included."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make(), value_head=True, reference=True)
        said, kept = say(policy, batch, logits=True), policy.reference_score(batch, logits=True)
        advice = "keep as the reference what was built"
        require_close(kept.logprobs, said.logprobs, "`reference_score(...).logprobs` at first", advice, tolerance=1e-5)
        require_close(kept.logits, said.logits, "`reference_score(...).logits` at first", advice, tolerance=1e-4)


@law(ARCHITECTURES)
def a_reference_stays(subject: Subject) -> None:
    """A reference says the same after the policy has changed, by training or by loading; never with gradients."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make(), value_head=True, reference=True)
        before = policy.reference_score(batch).logprobs
        require(
            not before.requires_grad,
            "`reference_score` was to record no gradients; it does; run it under torch.no_grad()",
        )
        move(policy)
        advice = "give the reference weights of its own, of all that trains"
        after = policy.reference_score(batch).logprobs
        require_close(after, before, "`reference_score` after the policy was trained", advice, tolerance=CLOSE)
        with saved(policy) as folder:
            other = build(subject, make(), value_head=True, reference=True)
            other.load_pretrained(folder)
            loaded = other.reference_score(batch).logprobs
        advice = "let load_pretrained bring weights to the policy alone; the reference is the start"
        require_close(loaded, before, "`reference_score` after load_pretrained", advice, tolerance=CLOSE)


@law(ARCHITECTURES)
def the_module_holds_nothing_of_the_reference(subject: Subject) -> None:
    """`policy.module` has the same parameters and buffers with a reference as without: an optimizer takes all of it."""
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
            f"policy.module was to be the same with reference=True; it differs in {', '.join(differ[:5])}; keep the "
            "reference outside of it, on the policy",
        )


@law(ARCHITECTURES)
def the_seed_decides_what_is_random(subject: Subject) -> None:
    """A configuration, as any model, is taken too: what is random in weights and heads follows torch's seed."""
    batch = make_dialogues()
    for make in examples(subject):
        first, second = (build(subject, make().config, value_head=True) for _ in range(2))
        said, again = say(first, batch), say(second, batch)
        for name in ("logprobs", "values"):
            require_close(
                getattr(again, name), getattr(said, name), f"{name} of a policy built again after the same seed",
                "draw random weights from torch's global generator, in one order", tolerance=CLOSE,
            )  # fmt: skip


@law(ARCHITECTURES)
def a_folder_is_the_model_in_it(subject: Subject) -> None:
    """A folder that plain transformers wrote gives the policy that its model in memory gives, with its tokenizer."""
    batch = make_dialogues()
    for make in examples(subject):
        expected = say(build(subject, make()), batch).logprobs
        with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
            with quiet_transformers():
                make().save_pretrained(folder)
            make_tokenizer().save_pretrained(folder)
            policy = build(subject, folder, tokenizer=FOLDERS)
        require_close(say(policy, batch).logprobs, expected, "logprobs of a policy built from a folder", "load it")
        seen = policy.tokenizer(TEXT).input_ids
        require(seen == IDS, f"the folder's tokenizer was to spell {TEXT!r} as {IDS}; it spells {seen}; load it")


@law(ARCHITECTURES)
def loading_brings_everything_back(subject: Subject) -> None:
    """A policy that loads what another saved says the same log-probs and values, and has the same module."""
    batch = make_dialogues("both")
    advice = "write every parameter and buffer in save_pretrained, the heads' into a file of their own, and read them"
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        move(policy)
        with saved(policy) as folder:
            other = build(subject, make(), value_head=True)
            with torch.no_grad():  # what is random at first must not be right by chance
                for parameter in other.module.parameters():
                    if parameter.requires_grad:
                        parameter.mul_(0.5)
            other.load_pretrained(folder)
        weights = other.module.state_dict()
        for name, weight in policy.module.state_dict().items():
            require_close(weights.get(name), weight, f"'{name}' after load_pretrained", advice, tolerance=CLOSE)
        said, expected = say(other, batch), say(policy, batch)
        for name in ("logprobs", "values"):
            require_close(
                getattr(said, name), getattr(expected, name), f"{name} after load_pretrained", advice, tolerance=CLOSE
            )


@law(ARCHITECTURES)
def loading_changes_parameters_in_place(subject: Subject) -> None:
    """`load_pretrained` leaves parameters the objects they were, for an optimizer may hold them, and as trainable."""
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        before = {name: (id(each), each.requires_grad) for name, each in policy.module.named_parameters()}
        with saved(policy) as folder:
            policy.load_pretrained(folder)
        after = {name: (id(each), each.requires_grad) for name, each in policy.module.named_parameters()}
        changed = sorted(name for name in before if after.get(name) != before[name])
        require(
            not changed,
            f"parameters were to stay the same objects, with the same requires_grad, in load_pretrained; "
            f"{', '.join(changed[:5])} did not; copy the weights into them (`load_state_dict` does)",
        )


@law(ARCHITECTURES)
def plain_transformers_loads_what_was_saved(subject: Subject) -> None:
    """A new process that knows no plugin loads a saved folder with plain transformers, model and tokenizer.

    The model gives the logits the policy gave; the folder's weights are the model's, all of them and no other.
    """
    policies = [build(subject, make(), value_head=True, reference=True) for make in examples(subject)]
    with ExitStack() as stack:
        for policy in policies:
            move(policy)
        folders = [str(stack.enter_context(saved(policy))) for policy in policies]
        found = call_anew(
            "rlcore.testing.rig.reference_transformers:read_folders",
            {"folders": folders, "sequences": [list(each) for each in SEQUENCES], "text": TEXT},
            what="loading a saved folder with transformers alone",
        )
    for policy, seen in zip(policies, found, strict=True):
        for what in ("missing", "unexpected"):
            require(
                not seen[what],
                f"{what} weights in the saved folder: {', '.join(seen[what][:5])}; save the model as transformers "
                "does, heads into a file of their own",
            )
        spelt = seen["tokens"]
        require(spelt == IDS, f"the saved tokenizer was to spell {TEXT!r} as {IDS}; it spells {spelt}; save it too")
        for tokens, logits in zip(SEQUENCES, seen["logits"], strict=True):
            batch = Trajectories.stack([tokens], [[t > 0 for t in range(len(tokens))]])
            require_close(
                torch.tensor(logits)[:-1],
                say(policy, batch, logits=True).logits,
                "what plain transformers says after loading the saved folder",
                "save the weights that the policy computes with",
            )
