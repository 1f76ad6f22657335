"""The names of a new plugin: its dist, import package, component and classes."""

from __future__ import annotations

import importlib.machinery
import keyword
import re
import sys
import unicodedata
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import attrs

from rlcore.components import normalise
from rlcore.errors import PluginNameError
from rlcore.plugins.registry import all_registries
from rlcore_tools.new_plugin.kinds import PluginKind

PREFIX = "rlcore-"
LONGEST = 30
"""Most characters in a component's name; the conformance kit has the same limit."""
RESERVED = ("example", "src", "tests")
"""Names of other modules and folders in the package's repository."""


@attrs.frozen
class Names:
    """The names of one plugin.

    Attributes:
        dist: name for pip, such as `rlcore-my-algo`.
        package: import package, such as `rlcore_my_algo`.
        component: name in a configuration, such as `my-algo`.
        title: prefix of the class names, such as `MyAlgo`.
    """

    dist: str
    package: str
    component: str
    title: str


def read_name(name: str, kind: PluginKind) -> Names:
    """Derive all names of a plugin from the name of its dist.

    Raises:
        PluginNameError: the name is not valid for a dist, or its package or component would be invalid or hide another.
    """
    _check_form(name)
    component = name.removeprefix(PREFIX)
    names = Names(
        dist=name,
        package=name.replace("-", "_"),
        component=component,
        title=_title(component, kind),
    )
    _check_package(names)
    for other in getattr(all_registries(), kind.registry).matches(component):
        raise PluginNameError(
            f"'{name}': {other.dist} {other.version} already has a {kind.noun} '{component}'; choose another name"
        )
    return names


def _check_form(name: str) -> None:
    component = name.removeprefix(PREFIX)
    if len(component) > LONGEST:
        raise PluginNameError(
            f"'{name}': the component name '{component}' has {len(component)} characters; the limit is {LONGEST}"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        near = re.sub(r"[^a-z0-9]+", "-", normalise(_without_accents(name))).strip("-0123456789")
        hint = f"; try '{near}'" if near else ""
        raise PluginNameError(
            f"'{name}': a name consists of lower-case letters, digits and single '-' between them, and begins with a "
            f"letter{hint}"
        )
    if not component[0].isalpha():
        raise PluginNameError(f"'{name}': the component name after '{PREFIX}' must begin with a letter")


def _title(component: str, kind: PluginKind) -> str:
    """Return a component's name in CamelCase without the suffix that its class gets: MyLogger, not MyLoggerLogger."""
    title = "".join(part[:1].upper() + part[1:] for part in component.split("-"))
    return title.removesuffix(kind.target.removeprefix("{title}")) or title


def _without_accents(name: str) -> str:
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def _check_package(names: Names) -> None:
    package = names.package
    if keyword.iskeyword(package):
        raise PluginNameError(f"'{names.dist}': '{package}' is a Python keyword and cannot be imported")
    if package in sys.stdlib_module_names:
        raise PluginNameError(f"'{names.dist}': its package would hide the standard library's module '{package}'")
    if package in RESERVED:
        raise PluginNameError(f"'{names.dist}': the repository has another '{package}'; choose another name")
    try:
        installed = distribution(names.dist)
    except PackageNotFoundError:
        pass
    else:
        raise PluginNameError(
            f"'{names.dist}': {names.dist} {installed.version} is already installed; choose another name"
        )
    folders = [folder for folder in sys.path if folder not in {"", str(Path.cwd())}]
    spec = importlib.machinery.PathFinder.find_spec(package, folders)
    if spec is not None:
        origin = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise PluginNameError(f"'{names.dist}': its package would hide the module '{package}' in {origin}")
