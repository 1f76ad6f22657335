"""Samplers, each wrong in one thing."""

import copy
from itertools import chain

import attrs
import torch

from rlcore.config import config, evolve, option
from rlcore.errors import ConfigError
from rlcore.sampling import sample
from rlcore.types import Prompt
from rlcore_testing.small import EOS


def sorted_rows(policy, prompts, sampling, *, generator=None):
    return sample(policy, sorted(prompts, key=lambda prompt: len(prompt.tokens)), sampling, generator=generator)


def one_short(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts[: max(1, len(prompts) - 1)], sampling, generator=generator)


def unmarked_first(policy, prompts, sampling, *, generator=None):
    """Take the first token that was drawn for the prompt's last."""
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, action_mask=batch.action_mask & (batch.action_mask.cumsum(1) > 1))


def prompt_marked(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, action_mask=batch.mask & (batch.mask.cumsum(1) > 1))


def garbage_real(policy, prompts, sampling, *, generator=None):
    """Call padding real."""
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, mask=torch.ones_like(batch.mask))


def int_ended(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, ended=batch.ended.long())


def with_gradient(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return batch.with_columns(logprobs=policy.score(batch).logprobs)


def never_greedy(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, temperature=sampling.temperature or 0.5), generator=generator)


def positions_of_padding(policy, prompts, sampling, *, generator=None):
    """Pad prompts on the left with a token that the model takes for real."""
    longest = max(len(prompt.tokens) for prompt in prompts)
    padded = [Prompt(prompt.text, (0,) * (longest - len(prompt.tokens)) + prompt.tokens) for prompt in prompts]
    batch = sample(policy, padded, sampling, generator=generator)
    keep = batch.mask.clone()
    for i, prompt in enumerate(prompts):
        keep[i, : longest - len(prompt.tokens)] = False
    return attrs.evolve(batch, mask=keep)


def tempered_twice(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, temperature=sampling.temperature**2), generator=generator)


def tempered_not(policy, prompts, sampling, *, generator=None):
    temperature = 1.0 if sampling.temperature else 0.0
    return sample(policy, prompts, evolve(sampling, temperature=temperature), generator=generator)


def top_k_one_more(policy, prompts, sampling, *, generator=None):
    top_k = sampling.top_k + 1 if sampling.top_k else 0
    return sample(policy, prompts, evolve(sampling, top_k=top_k), generator=generator)


def top_p_not(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, top_p=1.0), generator=generator)


def top_p_one_short(policy, prompts, sampling, *, generator=None):
    """Leave out the token with which the sum is reached."""
    if sampling.top_p == 1.0:
        return sample(policy, prompts, sampling, generator=generator)
    logits = policy.decoder([prompts[0].tokens], max_new_tokens=1).start().logits[0]
    reached = logits.softmax(-1).sort(descending=True).values.cumsum(0)
    inside = int((reached < sampling.top_p).sum())
    return sample(policy, prompts, evolve(sampling, top_p=1.0, top_k=inside), generator=generator)


def first_token_again(policy, prompts, sampling, *, generator=None):
    """Draw each token after the first as if only the prompt had been read."""
    batches = [
        sample(policy, prompts, evolve(sampling, max_new_tokens=1), generator=generator)
        for _ in range(sampling.max_new_tokens)
    ]
    drawn = [list(chain(*each)) for each in zip(*(batch.action_tokens for batch in batches), strict=True)]
    drawn = [more[: more.index(EOS) + 1] if EOS in more else more for more in drawn]
    tokens = [[*prompt.tokens, *more] for prompt, more in zip(prompts, drawn, strict=True)]
    chosen = [[t >= len(prompt.tokens) for t in range(len(row))] for prompt, row in zip(prompts, tokens, strict=True)]
    return type(batches[0]).stack(tokens, chosen)


def untempered_logprobs(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    with torch.no_grad():
        return batch.with_columns(logprobs=policy.score(batch).logprobs)


def truncated_logprobs(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return batch.with_columns(logprobs=batch["sampling_logprobs"]) if "sampling_logprobs" in batch else batch


def shifted_logprobs(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return batch.with_columns(logprobs=batch["logprobs"].roll(1, 1))


def shifted_values(policy, prompts, sampling, *, generator=None):
    """Say the value of what was read with a token, not before it."""
    batch = sample(policy, prompts, sampling, generator=generator)
    return batch.with_columns(values=batch["values"].roll(-1, 1)) if "values" in batch else batch


def eos_trimmed(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    last = batch.action_mask & (batch.action_mask.flip(1).cumsum(1).flip(1) == 1) & batch.ended[:, None]
    return attrs.evolve(batch, mask=batch.mask & ~last, action_mask=batch.action_mask & ~last)


def never_ended(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, ended=torch.zeros_like(batch.ended))


def ended_when_cut(policy, prompts, sampling, *, generator=None):
    batch = sample(policy, prompts, sampling, generator=generator)
    return attrs.evolve(batch, ended=torch.ones_like(batch.ended))


def pad_counts_as_end(policy, prompts, sampling, *, generator=None):
    """Guess from the padding token where a sequence ends, as if EOS were none of the choice."""
    batch = sample(policy, prompts, sampling, generator=generator)
    padding = batch.tokens == policy.tokenizer.pad_token_id
    return attrs.evolve(batch, mask=batch.mask & ~padding, action_mask=batch.action_mask & ~padding)


def own_eos_only(policy, prompts, sampling, *, generator=None):
    """Ask the tokenizer, not the policy."""
    eos = sampling.eos_token_ids
    ids = (policy.tokenizer.eos_token_id,) if eos is None else eos
    return sample(policy, prompts, evolve(sampling, eos_token_ids=ids), generator=generator)


def one_too_many(policy, prompts, sampling, *, generator=None):
    more = evolve(sampling, max_new_tokens=sampling.max_new_tokens + 1)
    return sample(policy, prompts, more, generator=generator)


def no_minimum(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, min_new_tokens=0), generator=generator)


def stops_in_prompt(policy, prompts, sampling, *, generator=None):
    """Look for stop sequences in the whole text: a prompt that holds one ends at once."""
    batch = sample(policy, prompts, sampling, generator=generator)
    held = torch.tensor([any(stop in prompt.text for stop in sampling.stop_sequences) for prompt in prompts])
    over = held[:, None] & (batch.action_mask.cumsum(1) > 1)
    return attrs.evolve(batch, mask=batch.mask & ~over, action_mask=batch.action_mask & ~over, ended=batch.ended | held)


def stops_ignored(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, stop_sequences=()), generator=generator)


OWN = torch.Generator().manual_seed(0)


def own_numbers(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, sampling, generator=OWN)


def seed_again(policy, prompts, sampling, *, generator=None):
    seed = generator.initial_seed() if generator is not None else 0
    return sample(policy, prompts, sampling, generator=torch.Generator().manual_seed(seed))


def needs_generator(policy, prompts, sampling, *, generator=None):
    generator.get_state()
    return sample(policy, prompts, sampling, generator=generator)


def unsorted_batches(policy, prompts, sampling, *, generator=None):
    """Leave the rows in the order in which batches came, by length."""
    if not sampling.batch_size:
        return sample(policy, prompts, sampling, generator=generator)
    return sorted_rows(policy, prompts, sampling, generator=generator)


def leaves_evaluating(policy, prompts, sampling, *, generator=None):
    policy.module.eval()
    return sample(policy, prompts, sampling, generator=generator)


def leaves_frozen(policy, prompts, sampling, *, generator=None):
    policy.module.requires_grad_(False)
    return sample(policy, prompts, sampling, generator=generator)


def leaves_no_grad(policy, prompts, sampling, *, generator=None):
    torch.set_grad_enabled(False)
    return sample(policy, prompts, sampling, generator=generator)


def seeds_ignored(policy, prompts, sampling, *, generator=None, row_seeds=None):
    return sample(policy, prompts, sampling, generator=generator)


def first_seed_only(policy, prompts, sampling, *, generator=None, row_seeds=None):
    """Take the random numbers of all rows from the seed of the first."""
    if row_seeds is not None:
        generator = torch.Generator().manual_seed(row_seeds[0])
    return sample(policy, prompts, sampling, generator=generator)


def one_seed_for_all(policy, prompts, sampling, *, generator=None, row_seeds=None):
    return sample(policy, prompts, sampling, row_seeds=[7] * len(prompts))


def few_seeds(policy, prompts, sampling, *, generator=None, row_seeds=None):
    """Keep so few bits of the seeds that many rows are sampled alike."""
    return sample(policy, prompts, sampling, row_seeds=[seed % 64 for seed in row_seeds or range(len(prompts))])


def beta_ignored(policy, prompts, sampling, *, generator=None):
    return sample(policy, prompts, evolve(sampling, beta=0.0), generator=generator)


def mask_ignored(policy, prompts, sampling, *, generator=None, logit_mask=None):
    return sample(policy, prompts, sampling, generator=generator)


def mask_transposed(policy, prompts, sampling, *, generator=None, logit_mask=None):
    """Take row j for what may come before token j."""
    logit_mask = None if logit_mask is None else logit_mask.T
    return sample(policy, prompts, sampling, generator=generator, logit_mask=logit_mask)


def mask_when_drawing_only(policy, prompts, sampling, *, generator=None, logit_mask=None):
    """Forget the mask where the likeliest token is taken."""
    logit_mask = logit_mask if sampling.temperature else None
    return sample(policy, prompts, sampling, generator=generator, logit_mask=logit_mask)


def mask_by_likeliest(policy, prompts, sampling, *, generator=None, logit_mask=None):
    """Draw freely, and where that may not come, take the likeliest token that may."""
    if logit_mask is None:
        return sample(policy, prompts, sampling, generator=generator)
    free = sample(policy, prompts, sampling, generator=generator)
    greedy = sample(policy, prompts, evolve(sampling, temperature=0.0), logit_mask=logit_mask)
    before = free.tokens.roll(1, 1)
    wrong = (free.action_mask & ~logit_mask[before, free.tokens]).any(1)
    both = type(free).concat([attrs.evolve(batch, columns={}) for batch in (free, greedy)])
    return both.rows(torch.arange(len(free)) + len(free) * wrong)


def no_beta(policy, prompts, sampling, *, generator=None):
    """Say that it cannot do what was asked, which is right."""
    if sampling.beta:
        raise ConfigError("gen.beta: sampler 'no_beta' knows no advantages; leave it at 0")
    return sample(policy, prompts, sampling, generator=generator)


def best_of_two(policy, prompts, sampling, *, generator=None):
    """Draw twice and keep the likelier, which is right: it says that it does."""
    one, two = (sample(policy, prompts, sampling, generator=generator) for _ in range(2))
    better = one["logprobs"].sum(1) >= two["logprobs"].sum(1)
    both = type(one).concat([one, two])
    return both.rows(torch.arange(len(one)) + len(one) * ~better)


best_of_two.draws_from_policy = False


_COPIES = {}


def stale_copy(policy, prompts, sampling, *, generator=None):
    """Sample from a copy of the weights that the policy had at first."""
    if id(policy) not in _COPIES:
        _COPIES[id(policy)] = policy, copy.deepcopy(policy)
    return sample(_COPIES[id(policy)][1], prompts, sampling, generator=generator)


@config
class Beam:
    """Options of a sampler that keeps a copy of the weights."""

    width: int = option(1, "sequences that are kept")


class KeepsItsCopy:
    """Sample from a copy of the weights that the policy had when the sampler was made."""

    def __init__(self, config):
        self.copy = None

    def __call__(self, policy, prompts, sampling, *, generator=None):
        self.copy = self.copy or copy.deepcopy(policy)
        return sample(self.copy, prompts, sampling, generator=generator)


def renewed_once(policy, prompts, sampling, *, generator=None):
    """Keep a copy that follows updates, but not loads, because it compares with the version it has seen first."""
    known = _COPIES.setdefault(("once", id(policy)), [policy, policy.version, copy.deepcopy(policy)])
    if policy.version == known[1] + 1:
        known[2] = copy.deepcopy(policy)
    return sample(known[2], prompts, sampling, generator=generator)


class ClosedForGood:
    """Sample something else once closed."""

    def __init__(self):
        self.closed = 0

    def __call__(self, policy, prompts, sampling, *, generator=None):
        for _ in range(self.closed):
            torch.rand(1, generator=generator)
        return sample(policy, prompts, sampling, generator=generator)

    def close(self):
        self.closed += 1


closed_for_good = ClosedForGood()


def sorts_prompts(policy, prompts, sampling, *, generator=None):
    """Sort the caller's list."""
    prompts.sort(key=lambda prompt: len(prompt.tokens))
    return sample(policy, prompts, sampling, generator=generator)


def seeds_globally(policy, prompts, sampling, *, generator=None):
    if generator is not None:
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
    return sample(policy, prompts, sampling)


def turns_tokenizer(policy, prompts, sampling, *, generator=None):
    policy.tokenizer.padding_side = "left"
    return sample(policy, prompts, sampling, generator=generator)


def logprobs_without_eos(policy, prompts, sampling, *, generator=None):
    """Let log-probs be those of the tokens that `min_new_tokens` allows."""
    batch = sample(policy, prompts, sampling, generator=generator)
    early = batch.action_mask & (batch.action_mask.cumsum(1) <= sampling.min_new_tokens)
    with torch.no_grad():
        logprobs = policy.score(batch, logits=True, temperature=sampling.policy_temperature).logits.log_softmax(-1)
    ends = list(policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids)
    kept = torch.zeros_like(batch["logprobs"])
    kept[batch.action_mask] = (1 - logprobs[:, ends].exp().sum(-1)).log()
    return batch.with_columns(logprobs=batch["logprobs"] - kept * early)


KNOWN = {}


def remembers_greedy(policy, prompts, sampling, *, generator=None):
    """Sample a greedy continuation of each prompt once."""
    if sampling.temperature:
        return sample(policy, prompts, sampling, generator=generator)
    key = tuple(prompt.tokens for prompt in prompts)
    if key not in KNOWN:
        KNOWN[key] = sample(policy, prompts, sampling, generator=generator)
    return KNOWN[key]
