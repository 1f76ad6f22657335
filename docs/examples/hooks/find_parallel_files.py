"""Tell how much each process writes of a checkpoint."""

from rlcore import hookimpl
from rlcore_shard import parts


class Told:
    check_shared = staticmethod(parts.check_shared)
    read = staticmethod(parts.read)

    def stage(self, folder, ranks, *, weights, state):
        print(f"process {ranks.rank} writes {len(weights)} weights")
        return parts.stage(folder, ranks, weights=weights, state=state)


@hookimpl
def find_parallel_files():
    return Told()
