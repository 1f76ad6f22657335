"""Print on which ranks a run is watched."""

from rlcore import hookimpl
from rlcore_shard import processes


class Told:
    start = staticmethod(processes.start)
    accept_launch = staticmethod(processes.accept_launch)

    def watch(self, rank, world, timeout_s):
        print(f"rank {rank} of {world} is watched, and waits up to {timeout_s:g} s")
        return processes.watch(rank, world, timeout_s)


@hookimpl
def find_processes():
    return Told()
