"""Laws of architectures: a policy's outputs are its model's, it can be trained and saved, its reference is fixed.

An architecture whose options include those of `seq2seq_lm` is checked with T5 and BART, any other with GPT-2 and Llama.
An architecture that does not support these sets the attribute `example_model` on the registered target: a function
without arguments that returns a small `PreTrainedModel` with random weights, in evaluation mode, with a vocabulary of
32 tokens. All laws are then checked with that model.

An architecture of models that are none of `transformers` also sets `reference_logprobs`: a function that takes such a
model and the token ids of one sequence, and returns the log-probs of the token after each of them, float[T, V], as
plainly as possible. Scores are compared with it, and laws about files of `transformers` do not apply.

The encoder of an encoder-decoder receives the tokens before a sequence's first action token; its decoder starts with
`decoder_start_token_id`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from rlcore.protocols import Policy
from rlcore.types import Trajectories
from rlcore_testing.law import Subject, law, require
from rlcore_testing.laws.architecture_heads import (  # noqa: F401  laws of architectures, found in this module
    a_head_trains_with_the_policy,
    advantages_are_those_of_the_head_that_steers,
    heads_are_saved,
    outputs_of_a_head_are_returned_by_name,
)
from rlcore_testing.laws.architecture_saving import (  # noqa: F401  laws of architectures, found in this module
    a_reference_does_not_change,
    a_reference_equals_the_start,
    a_saved_folder_equals_its_model,
    loading_changes_parameters_in_place,
    loading_raises_the_version,
    loading_restores_everything,
    plain_transformers_loads_what_was_saved,
    the_module_excludes_the_reference,
    the_seed_determines_random_weights,
)
from rlcore_testing.laws.architecture_scores import (  # noqa: F401  laws of architectures, found in this module
    a_sequence_without_actions_changes_nothing,
    optional_outputs_come_on_request,
    padding_changes_nothing,
    scores_are_those_of_plain_transformers,
    scoring_changes_nothing_else,
    temperature_divides_the_scored_logits,
    values_come_with_a_value_head,
)
from rlcore_testing.rig.policies import (
    CLOSE,
    build,
    examples,
    make_dialogues,
    perturb,
    require_close,
    score,
    takes_gpt2,
)  # fmt: skip
from rlcore_testing.small import EOS, VOCABULARY, make_gpt2, make_llama, make_tokenizer

ARCHITECTURES = "architectures"
PROMPTS = ((1, 2, 3), (4,), (5, 6), (1, 2, 3))
NEW_TOKENS = 6


def _declares_unfrozen_layers(subject: Subject) -> bool:
    """Return whether it supports GPT-2 and has an option `unfrozen_layers`."""
    fields = getattr(subject.it.config_class(), "__attrs_attrs__", ())
    return takes_gpt2(subject) and any(field.name == "unfrozen_layers" for field in fields)


@law(ARCHITECTURES)
def every_trainable_parameter_gets_a_gradient(subject: Subject) -> None:
    """Backward through `score` reaches every parameter that requires a gradient; under `no_grad` there is no graph.

    Log-probs have a gradient, and the same parameters require one with a reference as without.
    """
    for make in examples(subject):
        policy, batch = build(subject, make(), value_head=True, reference=True), make_dialogues("both")
        perturb(policy)  # parameters initialised to zero, as in adapters, may block gradients
        require(
            not score(policy, batch).logprobs.requires_grad,
            "under torch.no_grad() `score` should record no graph; it does; leave the grad mode to the caller",
        )
        policy.module.train()
        outputs = policy.score(batch)
        require(
            outputs.logprobs.requires_grad or subject.options.get("unfrozen_layers") == 0,
            "with gradients enabled, the log-probs of `score` should have one; they have none, so that no loss trains "
            "the model; let its parameters require gradients",
        )
        trains = [
            {name for name, each in made.module.named_parameters() if each.requires_grad}
            for made in (policy, build(subject, make(), value_head=True))
        ]
        if changed := sorted(trains[0] ^ trains[1]):
            require(
                False,
                f"the same parameters should require gradients with a reference as without; {changed[0]} does only "
                f"{'with' if changed[0] in trains[0] else 'without'}; freeze the reference's own parameters alone",
            )
        values = torch.zeros(()) if outputs.values is None else outputs.values.square().sum()
        ((outputs.logprobs * torch.linspace(0.5, 1.5, outputs.logprobs.shape[1])).sum() + values).backward()
        without = [
            name
            for name, parameter in policy.module.named_parameters()
            if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any()))
        ]
        require(
            not without,
            f"every trainable parameter should get a gradient; {', '.join(without[:5])} got none; use it in "
            "`score`, or set requires_grad to False",
        )


@law(ARCHITECTURES, when=_declares_unfrozen_layers)
def unfrozen_layers_are_the_top_ones(subject: Subject) -> None:
    """With `unfrozen_layers = 1` of two only the top block and the layers after it train; with 0, no layer trains."""
    for make, top in ((make_gpt2, ".h.1."), (make_llama, ".layers.1.")):
        below = (".h.0.", ".layers.0.", ".wte.", ".wpe.", ".embed_tokens.")
        for layers in (1, 0):
            named = build(subject, make(), changes={"unfrozen_layers": layers}).module.named_parameters()
            trains = [f".{name}" for name, parameter in named if parameter.requires_grad]
            wrong = [name for name in trains if not layers or any(part in name for part in below)]
            require(
                not wrong,
                f"with unfrozen_layers = {layers} of 2, {', '.join(wrong[:3])} should be frozen; it trains; set "
                "requires_grad to False below the top layers, including embeddings and parameters tied to them",
            )
            require(
                not layers or any(top in name for name in trains),
                f"with unfrozen_layers = 1 the top block should train; none of its parameters does; trainable are "
                f"{', '.join(trains[:3]) or 'none'}; keep requires_grad in the top block",
            )


@law(ARCHITECTURES)
def score_goes_through_forward(subject: Subject) -> None:
    """`score` calls the module passed to `policy.use_forward`, which averages gradients over processes."""
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        entered: list[str] = []
        policy.use_forward(_noting(policy.module, entered), autocast=nullcontext)
        score(policy, make_dialogues())
        require(
            bool(entered),
            "`score` should call the module passed to policy.use_forward; it did not; call it instead of the bare "
            "module, otherwise the processes of a run do not average their gradients",
        )


@law(ARCHITECTURES)
def everything_runs_in_autocast(subject: Subject) -> None:
    """`score`, `reference_score` and every step of a decoder run inside the autocast of `policy.use_forward`."""
    for make in examples(subject):
        policy = build(subject, make(), reference=True)
        entered: list[str] = []
        policy.use_forward(policy.module, autocast=_noting(nullcontext, entered))
        for what, call in _calls(policy):
            entered.clear()
            call()
            require(
                bool(entered),
                f"{what} should enter the autocast of policy.use_forward; it did not; run the model inside it",
            )


@law(ARCHITECTURES)
def training_step_does_not_change_scores(subject: Subject) -> None:
    """Scores inside `policy.training_step()` equal those outside, also after trainable parameters have changed."""
    for make in examples(subject):
        policy, batch = build(subject, make(), reference=True), make_dialogues()
        with policy.training_step():
            score(policy, batch)
            perturb(policy)
            cached = score(policy, batch), policy.reference_score(batch)
        advice = "cache nothing in training_step that depends on trainable parameters"
        for what, inside, outside in zip(
            ("score", "reference_score"), cached, (score(policy, batch), policy.reference_score(batch)), strict=True
        ):
            require_close(inside.logprobs, outside.logprobs, f"`{what}` inside training_step", advice)


def _noting(function: Callable[..., object], calls: list[str]) -> Callable[..., Any]:
    def noted(*args: object, **named: object) -> object:
        calls.append("called")
        return function(*args, **named)

    return noted


def _calls(policy: Policy) -> list[tuple[str, Callable[[], object]]]:
    batch, tokens = make_dialogues(), torch.zeros(len(PROMPTS), dtype=torch.long)
    decoder = policy.decoder(PROMPTS, max_new_tokens=2)
    return [
        ("score", lambda: score(policy, batch)),
        ("reference_score", lambda: policy.reference_score(batch)),
        ("decoder.start", decoder.start),
        ("decoder.step", lambda: decoder.step(tokens)),
    ]


@law(ARCHITECTURES)
def decoding_equals_scoring(subject: Subject) -> None:
    """Log-probs and values of a decoder, step by step for prompts of different lengths, equal those of `score`.

    Removing sequences with `keep` between steps does not change the outputs of the others.
    """
    for make in examples(subject):
        policy = build(subject, make(), value_head=True)
        _check_decoder(policy, keep=None)
        _check_decoder(policy, keep=torch.tensor([0, 1, 3]))


def _check_decoder(policy: Policy, keep: Tensor | None) -> None:
    decoder, prompts = policy.decoder(PROMPTS, max_new_tokens=NEW_TOKENS), list(PROMPTS)
    tokens = torch.randint(0, 30, (len(PROMPTS), NEW_TOKENS), generator=torch.Generator().manual_seed(4))
    logprobs: list[Any] = []
    values: list[Any] = []
    with torch.no_grad():
        outputs = decoder.start()
        for at in range(NEW_TOKENS):
            logprobs.append(outputs.logits.double().log_softmax(-1).gather(1, tokens[:, at, None])[:, 0])
            values.append(outputs.values)
            if at == 2 and keep is not None:
                decoder.keep(keep)
                tokens, prompts = tokens[keep], [PROMPTS[row] for row in keep.tolist()]
                logprobs, values = ([None if x is None else x[keep] for x in xs] for xs in (logprobs, values))
            if at + 1 < NEW_TOKENS:
                outputs = decoder.step(tokens[:, at])
    batch = Trajectories.stack(
        [[*prompt, *row] for prompt, row in zip(prompts, tokens.tolist(), strict=True)],
        [[False] * len(prompt) + [True] * NEW_TOKENS for prompt in prompts],
    )
    scored, after = score(policy, batch), "" if keep is None else f" (only rows {keep.tolist()} kept after 3 tokens)"
    advice = "give each prompt its own positions and mask, and reorder the cache with the rows"
    seen: Any = (("log-probs", logprobs, scored.logprobs), ("values", values, scored.values))
    for name, each, expected in seen:
        if all(x is not None for x in each):
            found = torch.stack(each, 1).flatten()
            require_close(found, expected[batch.action_mask], f"a decoder's {name}{after}", advice)


@law(ARCHITECTURES)
def context_length_and_eos_are_declared(subject: Subject) -> None:
    """`tokenizer` is the passed one, `eos_token_ids` are valid ids and include its EOS, `max_length` is the context.

    `max_length` is 0 if the context is unbounded; it is 64 for the kit's own models.
    """
    for make in examples(subject):
        tokenizer = make_tokenizer()
        policy = build(subject, make(), tokenizer=tokenizer)
        require(
            policy.tokenizer("abz").input_ids == [0, 1, 25] and policy.tokenizer.pad_token_id is not None,
            "policy.tokenizer should be the passed tokenizer, with a padding token; it is not; keep the passed one",
        )
        ids = policy.eos_token_ids
        require(
            EOS in ids and all(0 <= token < VOCABULARY for token in ids),
            f"policy.eos_token_ids should include {EOS}, the tokenizer's EOS, and only tokens in 0..{VOCABULARY - 1}; "
            f"they are {ids}; combine the tokenizer's EOS with those of the generation configuration",
        )
        known = make in {make_gpt2, make_llama}
        require(
            policy.max_length == 64 if known else policy.max_length >= 0,
            f"policy.max_length should be {64 if known else 'at least 0'}; it is {policy.max_length}; take it from the "
            "model's configuration",
        )


@law(ARCHITECTURES)
def moving_moves_everything(subject: Subject) -> None:
    """`to` moves every parameter and the reference; moving to the current device does not change the outputs."""
    for make in examples(subject):
        policy, batch = build(subject, make(), value_head=True, reference=True), make_dialogues()
        expected = score(policy, batch).logprobs
        policy.to(torch.device("cpu"))
        advice = "move modules with `.to`, in place"
        require_close(score(policy, batch).logprobs, expected, "logprobs after to('cpu')", advice, tolerance=CLOSE)
        policy.to(torch.device("meta"))
        left = [name for name, parameter in policy.module.named_parameters() if not parameter.is_meta]
        require(
            not left and policy.device.type == "meta",
            f"everything should move; {', '.join(left[:3]) or 'policy.device'} did not; move it in `to`",
        )
        try:
            outputs: Tensor | None = policy.reference_score(batch).logprobs
        except (
            RuntimeError,
            NotImplementedError,
            ValueError,
        ):  # the reference has moved: the meta device computes nothing
            outputs = None
        require(
            outputs is None or outputs.is_meta,
            "the reference should move with the policy; it still computes on the old device; move it in `to`",
        )
