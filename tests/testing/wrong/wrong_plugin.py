"""Register every component that registered.py names."""

from registered import components

from rlcore import hookimpl
from rlcore.components import KINDS

COMPONENTS = components()


def _hook(kind):
    def register_kind(register):
        for of, name, target, config in COMPONENTS:
            if of == kind:
                register(name, target, config=config, summary="wrong on purpose")

    return hookimpl(register_kind, specname=f"register_{kind}")


for _kind in KINDS:
    globals()[f"register_{_kind}"] = _hook(_kind)
