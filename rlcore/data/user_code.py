"""The user's code: objects named as `module:attribute`, and the defaults of torch, which it must not change."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rlcore.components import describe_error
from rlcore.errors import DataError


def load_reference(reference: str, what: str) -> Any:
    """Import the object of a user's reference `module:attribute`, also from the working folder.

    During the import, the working folder is the last entry of `sys.path`, so it shadows no installed module;
    afterwards it is removed again.

    Raises:
        DataError: there is no such module or attribute, the import failed or changed the defaults of torch, or reading
            the attribute raised.
    """
    module_name, _, attribute = reference.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        with same_defaults() as changes:
            target: object = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's module may raise anything while it is imported
        raise DataError(
            f"{what} = {reference!r}: importing '{module_name}' failed, {describe_error(error)}. Searched: the "
            f"installed modules and {here}"
        ) from error
    finally:
        sys.path.remove(here)
    if changes:
        raise DataError(f"{what} = {reference!r}: importing '{module_name}' {changes[0]}")
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except KeyboardInterrupt:
            raise
        except AttributeError:
            file = inspect.getattr_static(target, "__file__", None) or module_name
            raise DataError(f"{what} = {reference!r}: {file} has no '{part}'{_public(target)}") from None
        except BaseException as error:  # as above: a module's `__getattr__` is the user's code
            raise DataError(f"{what} = {reference!r}: reading '{part}' raised {describe_error(error)}") from error
    return target


@contextmanager
def same_defaults() -> Iterator[list[str]]:
    """Restore the default dtype and device after the block; the list then holds a message if the block changed them."""
    import torch  # here, because it takes seconds

    changes: list[str] = []
    dtype, device = before = torch.get_default_dtype(), torch.get_default_device()
    try:
        yield changes
    finally:
        now = torch.get_default_dtype(), torch.get_default_device()
        if now != before:
            torch.set_default_dtype(dtype)
            torch.set_default_device(None if device.type == "cpu" else device)
            changes.append(
                f"changed the defaults of torch to {now[0]} on {now[1]}, with which the policy would compute too; pass "
                "dtype and device to the functions that create tensors instead"
            )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function by name; None if it has no signature, as some of C extensions.

    A module of torch has those of its `forward`. Arguments that a `functools.partial` has bound are left out, also if
    `functools.update_wrapper` made it look like the function.
    """
    inner, bound = function, bound_names(function)
    while isinstance(inner, functools.partial):
        inner = inner.func
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(inner, torch.nn.Module):
        inner = inner.forward
    if isinstance(function, functools.partial):
        function = functools.partial(inner, *_bound_by_position(function))
    elif inner is not function:
        function = inner
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return None
    return {name: each for name, each in parameters.items() if name not in bound}


def _bound_by_position(function: Callable[..., object]) -> tuple[object, ...]:
    if not isinstance(function, functools.partial):
        return ()
    return (*_bound_by_position(function.func), *function.args)


def bound_names(function: Callable[..., object]) -> frozenset[str]:
    """Return the names of the arguments that a `functools.partial` has bound by name."""
    names = frozenset[str]()
    while isinstance(function, functools.partial):
        names, function = names | frozenset(function.keywords), function.func
    return names


def list_names(names: Iterable[Any]) -> str:
    """Return the first of some names, as errors list them."""
    listed = [repr(name) for name in names]
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "") if listed else "none"


def _public(target: object) -> str:
    if not isinstance(target, ModuleType | type):
        return ""
    public = {
        name: value for name, value in vars(target).items() if name[:1] != "_" and not isinstance(value, ModuleType)
    }
    return ", only " + list_names(sorted(public, key=lambda name: _distance(public[name], target)))


def _distance(value: object, target: ModuleType | type) -> int:
    """Return 0 for a function that a module defines, 1 for one that it imports, and 2 for anything else."""
    is_own = getattr(value, "__module__", None) == getattr(target, "__name__", "")
    return (0 if is_own else 1) if callable(value) else 2
