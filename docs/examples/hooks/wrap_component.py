"""Time every call of any sampler."""

import functools
import time

from rlcore import hookimpl


@hookimpl
def wrap_component(component):
    return timed if component.kind == "samplers" else None


def timed(sampler):
    @functools.wraps(sampler)
    def sample(policy, prompts, sampling, **options):
        begun = time.perf_counter()
        batch = sampler(policy, prompts, sampling, **options)
        print(f"{len(batch)} sequences sampled in {time.perf_counter() - begun:.2f} s")
        return batch

    return sample
