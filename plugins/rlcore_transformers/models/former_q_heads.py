"""Former arguments and methods for Q-heads, which are heads of `rlcore-ilql` now; each warns."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from rlcore.errors import ModelError
from rlcore.protocols import HeadBuilder

PACKAGE = "rlcore_ilql"


def with_q_heads(heads: Mapping[str, HeadBuilder] | None, num: int) -> Mapping[str, HeadBuilder]:
    """Return the heads that an architecture is asked for, with those of its former argument `q_heads`.

    Raises:
        ModelError: `rlcore-ilql` is not installed.
    """
    if not num:
        return heads or {}
    _warn(f"q_heads={num}", f"heads={PACKAGE}.config.q_heads({num})")
    made: Mapping[str, HeadBuilder] = _import("config").q_heads(num)
    return {**(heads or {}), **made}


class FormerQPolicy:
    """Former attributes of policies for Q-heads."""

    @property
    def num_q_heads(self) -> int:
        """Return the number of Q-heads."""
        _warn("policy.num_q_heads", "policy.module.heads")
        found = getattr(self, "module").heads.get("q_heads")  # noqa: B009  an attribute of the class that inherits
        return 0 if found is None else len(found.heads)

    def sync_targets(self, rate: float) -> None:
        """Move the target Q-heads towards the Q-heads.

        Raises:
            ModelError: the policy has no Q-heads.
        """
        _warn("policy.sync_targets(rate)", f"{PACKAGE}.q_heads.sync_targets(policy, rate)")
        if "q_heads" not in getattr(self, "module").heads:  # noqa: B009  as above
            raise ModelError(f"this policy has no Q-heads to sync: build it with heads={PACKAGE}.config.q_heads(2)")
        _import("q_heads").sync_targets(self, rate)


def _warn(what: str, use: str) -> None:
    warnings.warn(f"{what} is deprecated: use {use}", DeprecationWarning, stacklevel=4)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ModelError("Q-heads come with rlcore-ilql, which is not installed: pip install rlcore-ilql") from None
