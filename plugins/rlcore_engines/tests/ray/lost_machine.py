"""Sample with actors on two nodes of a Ray cluster, one of which is lost in mid round; prints what was seen, as JSON.

    python lost_machine.py

A process of its own: the other tests of this folder are connected to another Ray.
"""

from __future__ import annotations

import json
import time
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from rlcore.sampling import derive_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.ray_sampler import RaySampler
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts

STORE = 80_000_000


def node_of(_: Any) -> str:
    """Return the node of this process; it is sent to actors."""
    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    """Print the nodes of both actors before and after, and whether each round has the tokens of one process."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    nodes = [cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
    sampler = RaySampler(RayConfig(num_actors=2, address=cluster.address, rows=3, placement="spread"))
    policy, prompts = make_policy(value_head=True), make_prompts(TEXTS * 3)
    sampling, seeds = SamplingConfig(max_new_tokens=8), derive_seeds(4, range(len(prompts)))
    expected, lost = sample(policy, prompts, sampling, row_seeds=seeds), list[str]()

    def places() -> list[str]:
        asked = [each.__ray_call__.options(max_task_retries=-1).remote(node_of) for each in sampler._crew.workers]
        return list(ray.get(asked, timeout=120))

    def lose(*_: Any) -> None:
        if not lost:
            lost.append(nodes[1].node_id)
            cluster.remove_node(nodes[1], allow_graceful=False)
            while any(each["Alive"] and each["NodeID"] == lost[0] for each in ray.nodes()):
                time.sleep(0.1)

    first = sampler(policy, prompts, sampling, row_seeds=seeds)
    before = places()
    second = sampler(policy, prompts, sampling, row_seeds=seeds, on_batch=lose)
    after = places()
    third = sampler(policy, prompts, sampling, row_seeds=seeds)
    equal = [torch.equal(each.tokens, expected.tokens) for each in (first, second, third)]
    found = {"nodes": [each.node_id for each in nodes], "before": before, "after": after, "equal": equal}
    found |= {"keeper": ray.get(sampler._crew._keeper.__ray_call__.remote(node_of)), "own": node_of(None)}
    print(json.dumps(found))
    sampler.close()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
