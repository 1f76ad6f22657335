"""Laws of samplers: tokens follow the policy's distribution, are recorded correctly, and sequences end correctly.

A sampler that intentionally samples from another distribution, as best-of-n does, sets the attribute
`draws_from_policy = False` on the registered target. The laws on greedy decoding and on frequencies then do not apply.
"""

from __future__ import annotations

from typing import Any

import torch

from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.laws.remote_samplers import (  # noqa: F401  laws of samplers, found in this module
    a_worker_that_dies_changes_nothing,
    an_answer_that_comes_late_changes_nothing,
    an_answer_that_comes_twice_counts_once,
    workers_follow_every_update,
    workers_sample_what_one_process_does,
)
from rlcore_testing.laws.sampler_draws import (  # noqa: F401  laws of samplers, found in this module
    a_generator_may_be_left_out,
    a_row_depends_on_its_own_seed,
    batches_change_nothing,
    beta_adds_advantages_to_the_logits,
    frequencies_match_the_policy,
    greedy_equals_transformers,
    only_allowed_tokens_are_sampled,
    only_the_generator_matters,
    temperature_divides_the_logits,
    the_generator_advances,
    top_k_samples_the_likeliest,
    top_p_samples_the_likeliest,
)
from rlcore_testing.laws.submitted_rounds import submitted_rows_are_those_of_a_call  # noqa: F401  the same
from rlcore_testing.rig.policies import perturb, saved, tokenizer_settings
from rlcore_testing.rig.reference_transformers import action_logprobs
from rlcore_testing.rig.sampler_calls import (
    ENDING,
    TEXTS,
    check_column,
    closes,
    draw,
    make_policy,
    make_prompts,
    make_sampler,
)  # fmt: skip
from rlcore_testing.small import LETTERS, make_gpt2, make_llama
from rlcore_transformers.models.policy import ModelPolicy

SAMPLERS = "samplers"


@law(SAMPLERS)
def row_i_continues_prompt_i(subject: Subject) -> None:
    """The sampler returns one sequence for each prompt, in the prompts' order, beginning with the prompt's tokens."""
    policy = make_policy()
    for texts in (TEXTS, TEXTS[:1], ("q",)):
        prompts = make_prompts(texts)
        batch = draw(subject, policy, prompts)
        require(
            len(batch) == len(prompts),
            f"{len(prompts)} prompts should give as many sequences; there are {len(batch)}; return one for each prompt",
        )
        for i, prompt in enumerate(prompts):
            seen = batch.tokens[i][batch.mask[i] & ~batch.action_mask[i]].tolist()
            require(
                seen == list(prompt.tokens),
                f"sequence {i} should begin with its prompt's tokens {list(prompt.tokens)}; the tokens that "
                f"`action_mask` does not select are {seen}; return the rows in the order of the prompts",
            )


@law(SAMPLERS)
def masks_select_the_continuation(subject: Subject) -> None:
    """`mask` is True for prompt and continuation, which are contiguous; `action_mask` is True for the continuation.

    Every continuation has at least one token; padding is False in both masks.
    """
    prompts = make_prompts(TEXTS)
    batch = draw(subject, make_policy(), prompts, eos_token_ids=ENDING)
    for i, prompt in enumerate(prompts):
        real = batch.mask[i].nonzero()[:, 0].tolist()
        side_by_side = real == list(range(real[0], real[-1] + 1)) if real else False
        require(side_by_side, f"the real tokens of sequence {i} should be contiguous; they are at {real}")
        actions = batch.action_mask[i].nonzero()[:, 0].tolist()
        require(
            bool(actions) and actions == real[len(prompt.tokens) :],
            f"`action_mask` of sequence {i} should be True at {real[len(prompt.tokens) :]}, the real tokens after its "
            f"prompt; it is True at {actions}; mark exactly the sampled tokens",
        )


@law(SAMPLERS)
def tensors_have_the_right_dtype_and_shape(subject: Subject) -> None:
    """Tokens are int64 ids of the vocabulary, masks and `ended` are bool, columns have shape [B] or [B, T].

    All tensors are on the policy's device and require no gradient.
    """
    policy = make_policy(value_head=True)
    batch = draw(subject, policy, make_prompts(TEXTS))
    height, width = batch.tokens.shape
    whole, each = (height,), (height, width)
    expected: dict[str, tuple[torch.dtype, list[tuple[int, ...]]]]
    expected = {"tokens": (torch.int64, [each]), "ended": (torch.bool, [whole])}
    expected |= {name: (torch.bool, [each]) for name in ("mask", "action_mask")}
    expected |= {name: (column.dtype, [whole, each]) for name, column in batch.columns.items()}
    for name, (dtype, shapes) in expected.items():
        array = batch[name] if name in batch else getattr(batch, name)
        require(
            array.dtype == dtype and tuple(array.shape) in shapes and array.device == policy.device,
            f"'{name}' should be {dtype} of {' or '.join(map(str, shapes))} on {policy.device}; it is {array.dtype} of "
            f"{tuple(array.shape)} on {array.device}; convert it",
        )
        require(not array.requires_grad, f"'{name}' should require no gradient; it does; sample under torch.no_grad()")
    real = batch.tokens[batch.mask]
    known = ((real >= 0) & (real < len(policy.tokenizer))).all()
    require(bool(known), f"tokens should lie in 0..{len(policy.tokenizer) - 1}; they reach {real.aminmax()}")


@law(SAMPLERS)
def logprobs_are_tempered_only(subject: Subject) -> None:
    """A column `logprobs` holds log softmax(logits / temperature) of the sampled tokens, within 1e-4.

    The logits are those of plain transformers. Top-k, top-p and `min_new_tokens` do not change this column; greedy
    sampling has temperature 1 here.
    """
    tried: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.7},
        {"temperature": 1.4, "top_k": 8, "top_p": 0.95},
        {"temperature": 0.0},
        {"min_new_tokens": 4, "eos_token_ids": ENDING},
    )
    for make in (make_gpt2, make_llama):
        for options in tried:
            batch = draw(subject, make_policy(make), make_prompts(TEXTS), **options)
            if "logprobs" not in batch:
                return
            expected = action_logprobs(make(), batch, options.get("temperature") or 1.0)
            check_column(batch, "logprobs", expected, f"with {options or 'defaults'}")


@law(SAMPLERS)
def values_equal_scoring(subject: Subject) -> None:
    """A column `values` holds the values that `policy.score` returns for the sampled tokens, within 1e-4."""
    policy = make_policy(value_head=True)
    batch = draw(subject, policy, make_prompts(TEXTS))
    if "values" in batch:
        with torch.no_grad():
            values = policy.score(batch).values
        if values is None:
            raise LawBroken("the policy has a value head, but returns no values after sampling; do not change it")
        check_column(batch, "values", values, "with a value head")


@law(SAMPLERS)
def eos_ends_and_is_kept(subject: Subject) -> None:
    """A sequence ends with its first EOS token, an action token; `ended` is True for exactly the sequences with one.

    This holds whether or not the padding token is EOS.
    """
    for pad_is_eos in (False, True):
        batch = draw(subject, make_policy(pad_is_eos=pad_is_eos), make_prompts(TEXTS * 4), eos_token_ids=ENDING)
        for i, actions in enumerate(batch.action_tokens):
            at = [position for position, token in enumerate(actions) if token in ENDING]
            require(
                at in ([], [len(actions) - 1]),
                f"sequence {i} should end with its first EOS (any of {ENDING}); it continues: {actions}; stop at EOS",
            )
            require(
                bool(batch.ended[i]) == bool(at),
                f"`ended` of sequence {i}, whose action tokens are {actions}, should be {bool(at)} (EOS is any of "
                f"{ENDING}); it is {bool(batch.ended[i])}; keep EOS as the last action token, and set `ended` for its "
                "sequence",
            )


@law(SAMPLERS)
def the_policys_eos_tokens_end(subject: Subject) -> None:
    """If `sampling.eos_token_ids` is None, each of the policy's `eos_token_ids` ends a sequence."""
    policy = make_policy()
    policy.eos_token_ids = ENDING
    batch = draw(subject, policy, make_prompts(TEXTS * 4))
    for i, actions in enumerate(batch.action_tokens):
        require(
            not set(actions[:-1]) & set(ENDING),
            f"sequence {i} should end with the first of policy.eos_token_ids = {ENDING}; it is {actions}; stop at them "
            "if sampling.eos_token_ids is None",
        )


@law(SAMPLERS)
def limits_are_honoured(subject: Subject) -> None:
    """Without EOS every continuation has `max_new_tokens` tokens, or as many as fit into the policy's context.

    `ended` is then False.
    """
    policy = make_policy()
    prompts = make_prompts(("a", "ab" * 30, "cat"))
    batch = draw(subject, policy, prompts, max_new_tokens=7, eos_token_ids=())
    for i, (prompt, actions) in enumerate(zip(prompts, batch.action_tokens, strict=True)):
        expected = min(7, policy.max_length - len(prompt.tokens))
        require(
            len(actions) == expected and not bool(batch.ended[i]),
            f"a prompt of {len(prompt.tokens)} tokens in a context of {policy.max_length} should get {expected} new "
            f"ones with max_new_tokens = 7, and `ended` False; it got {len(actions)}, `ended` "
            f"{bool(batch.ended[i])}; stop at the limit",
        )


@law(SAMPLERS)
def eos_waits_for_min_new_tokens(subject: Subject) -> None:
    """With `min_new_tokens`, no EOS is sampled before that many tokens."""
    batch = draw(
        subject, make_policy(), make_prompts(TEXTS * 4), min_new_tokens=3, max_new_tokens=6, eos_token_ids=ENDING
    )
    for i, actions in enumerate(batch.action_tokens):
        require(
            len(actions) >= 3 and not set(actions[:3]) & set(ENDING),
            f"the first 3 tokens of sequence {i} should contain no EOS (any of {ENDING}); it is {actions}; mask EOS "
            "out until min_new_tokens",
        )


@law(SAMPLERS)
def stop_sequences_end(subject: Subject) -> None:
    """A continuation ends with the token that completes a stop sequence in it, and `ended` is then True.

    Stop sequences in the prompt have no effect.
    """
    stops, policy = ("e", "i", "ca", "o"), make_policy()
    prompts = make_prompts(("here we go", "a", "cat", "nice") * 6)
    batch = draw(subject, policy, prompts, stop_sequences=stops, eos_token_ids=(), max_new_tokens=12)
    for i, actions in enumerate(batch.action_tokens):
        text = "".join(LETTERS[token] if token < len(LETTERS) else "_" for token in actions)
        before = [stop for stop in stops if stop in text[:-1]]
        ends = text.endswith(stops)
        require(
            bool(actions) and not before and bool(batch.ended[i]) == ends and (ends or len(actions) == 12),
            f"with stop_sequences = {stops} the continuation {text!r} (`ended` {bool(batch.ended[i])}) of prompt {i} "
            "should end with the first of them that it completes, and `ended` should be True only then; search the "
            "continuation without the prompt, after every token",
        )


@law(SAMPLERS)
def it_follows_the_weights(subject: Subject) -> None:
    """After an update or a load the sampler samples from the new weights; both raise `policy.version`.

    This holds for greedy sampling too.
    """
    policy, prompts, sampler = make_policy(), make_prompts(TEXTS * 2), make_sampler(subject)  # one, as in a run

    def sampled(policy: ModelPolicy, sampler: Any = None) -> list[list[list[int]]]:
        return [
            draw(subject, policy, prompts, sampler=sampler, temperature=temperature).action_tokens
            for temperature in (1.0, 0.0)
        ]

    with saved(policy) as start:
        first = sampled(policy, sampler)
        perturb(policy)
        second = sampled(policy, sampler)
        fresh = make_policy()
        with saved(policy) as changed:
            fresh.load_pretrained(changed)
        for seen, expected, stale in zip(second, sampled(fresh), first, strict=True):
            _require_new(seen, expected, stale, "after an update of the policy")
        policy.load_pretrained(start)
        for seen, expected, stale in zip(sampled(policy, sampler), first, second, strict=True):
            _require_new(seen, expected, stale, "after `policy.load_pretrained`")


def _require_new(seen: list[list[int]], expected: list[list[int]], stale: list[list[int]], when: str) -> None:
    """Require continuations to be those of the new weights; `stale` are those of the weights before."""
    advice = "sample from the policy's present weights, or renew a copy of them whenever `policy.version` has changed"
    require(
        seen != stale,
        f"{when} the sampler should sample from the new weights; it samples the same tokens as before; {advice}",
    )
    wrong = next((i for i, (one, other) in enumerate(zip(seen, expected, strict=True)) if one != other), None)
    require(
        wrong is None,
        f"{when} sequence {wrong} should continue with {expected[wrong or 0]}, as with a new policy of the same "
        f"weights; it continues with {seen[wrong or 0]}; {advice}",
    )


@law(SAMPLERS, when=closes)
def it_samples_again_after_close(subject: Subject) -> None:
    """After `close()`, also a second one, a sampler samples the same tokens as before."""
    policy, prompts, sampler = make_policy(), make_prompts(TEXTS), make_sampler(subject)
    before = draw(subject, policy, prompts, sampler=sampler).action_tokens
    sampler.close()
    sampler.close()
    after = draw(subject, policy, prompts, sampler=sampler).action_tokens
    sampler.close()
    require(
        after == before,
        f"after close() the sampler should sample {before[0]} for the first prompt, as before; it samples {after[0]}; "
        "start anew when called after close()",
    )


@law(SAMPLERS)
def the_policy_is_not_changed(subject: Subject) -> None:
    """Sampling does not change any module's mode, any parameter, `requires_grad` or gradient, or torch's grad mode.

    Nor does it change settings of the policy's tokenizer.
    """
    policy = make_policy(value_head=True)
    parts, parameters = list(policy.module.modules()), list(policy.module.parameters())
    policy.module.train()
    parts[3].training = False
    parameters[0].requires_grad = False
    before = _condition(policy)
    with torch.enable_grad():
        draw(subject, policy, make_prompts(TEXTS))
        grad_mode = torch.is_grad_enabled()
    require(grad_mode, "torch's grad mode should stay on; the sampler turned it off; use `with torch.no_grad():`")
    for what, state in _condition(policy).items():
        require(
            state == before[what],
            f"{what} of the policy should be the same after sampling; they are not; restore them "
            "(`rlcore.ops.eval_mode` restores modes)",
        )


def _condition(policy: ModelPolicy) -> dict[str, object]:
    parameters = list(policy.module.parameters())
    return {
        "settings of the tokenizer": list(tokenizer_settings(policy.tokenizer).items()),
        "modes": [part.training for part in policy.module.modules()],
        "requires_grad": [p.requires_grad for p in parameters],
        "gradients": [p.grad for p in parameters],
        "weights": [p.detach().tolist() for p in parameters],
    }
