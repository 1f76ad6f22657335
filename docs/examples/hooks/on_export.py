"""Add a notice to every trained model."""

from rlcore import hookimpl


@hookimpl
def on_export(run, folder):
    (folder / "NOTICE").write_text(f"trained for {run.step} steps by acme\n")
