"""Libraries that only one of the rewards needs, which are extras of the package."""

from __future__ import annotations

import importlib
from typing import Any

from rlcore.errors import PluginError


def load(module: str, *, reward: str, extra: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: its name, such as `jsonschema`.
        reward: the reward that needs it, for the error.
        extra: the extra of rlcore-rewards that installs it.

    Raises:
        PluginError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginError(
            f"reward '{reward}' needs {module.partition('.')[0]}, which cannot be imported ({error}): "
            f"pip install 'rlcore-rewards[{extra}]'"
        ) from error
