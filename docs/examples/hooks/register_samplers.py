"""A sampler that always samples greedily, regardless of `gen.temperature`."""

from rlcore import hookimpl


@hookimpl
def register_samplers(register):
    register("greedy", "register_samplers:greedy", summary="greedy sampling")


def greedy(policy, prompts, sampling, *, generator=None, logit_mask=None):
    from rlcore.config import evolve
    from rlcore.sampling import sample

    batch = sample(policy, prompts, evolve(sampling, temperature=0.0), generator=generator, logit_mask=logit_mask)
    return batch.with_only()  # without log-probs, which trainers then compute at `gen.temperature`


greedy.draws_from_policy = False
