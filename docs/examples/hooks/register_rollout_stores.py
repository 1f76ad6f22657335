"""A store that says how much waits in it."""

from rlcore import hookimpl


@hookimpl
def register_rollout_stores(register):
    register("loud", "register_rollout_stores:make_store", summary="the store in memory, and a line a round")


def make_store():
    from rlcore.training import MemoryStore

    class LoudStore(MemoryStore):
        def take(self):
            print(f"{len(self)} sequences leave the store")
            return super().take()

    return LoudStore()
