"""Plan a run's memory before it is paid for; see `docs/memory.md`."""
