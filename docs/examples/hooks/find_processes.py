"""Print on which ranks a run is watched."""

from rlcore import hookimpl
from rlcore_shard.local_processes import accept_launch, start, watch


class Told:
    start = staticmethod(start)
    accept_launch = staticmethod(accept_launch)

    def watch(self, rank, world, timeout_s):
        print(f"rank {rank} of {world} is watched, and waits up to {timeout_s:g} s")
        return watch(rank, world, timeout_s)


@hookimpl
def find_processes():
    return Told()
