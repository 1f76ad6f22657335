"""Register every deliberately wrong component that a file beside this one lists."""

import importlib
from pathlib import Path

from rlcore import hookimpl
from rlcore.components import KINDS

LISTS = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("registered_*.py"))]


def _hook(kind):
    def register_kind(register):
        for module in LISTS:
            for of, name, target, config in module.COMPONENTS:
                if of == kind:
                    register(name, target, config=config, summary="wrong on purpose")

    return hookimpl(register_kind, specname=f"register_{kind}")


for _kind in KINDS:
    globals()[f"register_{_kind}"] = _hook(_kind)
