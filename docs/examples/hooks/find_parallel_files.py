"""Print how much each process writes of a checkpoint."""

from rlcore import hookimpl
from rlcore_shard.parallel_files import check_shared, read, stage


class Told:
    check_shared = staticmethod(check_shared)
    read = staticmethod(read)

    def stage(self, folder, ranks, *, weights, state):
        print(f"process {ranks.rank} writes {len(weights)} weights")
        return stage(folder, ranks, weights=weights, state=state)


@hookimpl
def find_parallel_files():
    return Told()
