"""Print the size of every checkpoint."""

from rlcore import hookimpl


@hookimpl
def on_checkpoint(run, path):
    if run.ranks.is_main:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"checkpoint {path.name}: {size} bytes")
