"""A store that prints the number of sequences taken from it."""

from rlcore import hookimpl


@hookimpl
def register_rollout_stores(register):
    register("loud", "register_rollout_stores:make_store", summary="the store in memory, with a line per round")


def make_store():
    from rlcore.training import MemoryStore

    class LoudStore(MemoryStore):
        def take(self):
            print(f"{len(self)} sequences leave the store")
            return super().take()

    return LoudStore()
