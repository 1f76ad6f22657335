"""Print the files of a run and their size, once all of them are written."""

from rlcore import hookimpl


@hookimpl
def on_run_closed(run):
    if run.ranks.is_main:
        sizes = [file.stat().st_size for file in run.dir.rglob("*") if file.is_file()]
        print(f"{len(sizes)} files, {sum(sizes) / 1e6:.2f} MB")
