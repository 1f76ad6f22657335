"""What a new plugin is called: its dist, its import package, its component, its classes."""

from __future__ import annotations

import importlib.machinery
import keyword
import re
import sys
import unicodedata
from importlib.metadata import PackageNotFoundError, distribution

import attrs

from rlcore.cli.new_plugin.kinds import PluginKind
from rlcore.components import normalise
from rlcore.errors import PluginNameError
from rlcore.plugins.metadata import search_path
from rlcore.plugins.registry import all_registries

PREFIX = "rlcore-"
LONGEST = 30
"""Characters of a component's name, as the conformance kit counts them."""
RESERVED = ("example", "src", "tests")
"""Names of modules and folders that the package has besides."""


@attrs.frozen
class Names:
    """Hold the names of one plugin.

    Attributes:
        dist: what pip installs, `rlcore-my-algo`.
        package: what Python imports, `rlcore_my_algo`.
        component: what a configuration names, `my-algo`.
        title: what its classes begin with, `MyAlgo`.
    """

    dist: str
    package: str
    component: str
    title: str


def read_name(name: str, kind: PluginKind) -> Names:
    """Derive every name of a plugin from the name of its dist.

    Raises:
        PluginNameError: it is no name of a dist, or its package or component could not be used or would hide another.
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
    taken = all_registries()
    for other in getattr(taken, kind.registry).matches(component):
        raise PluginNameError(
            f"'{name}': {other.dist} {other.version} brings a {kind.noun} '{component}'; choose another"
        )
    return names


def _check_form(name: str) -> None:
    component = name.removeprefix(PREFIX)
    if len(component) > LONGEST:
        raise PluginNameError(
            f"'{name}': its component '{component}' has {len(component)} characters; {LONGEST} are the most"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        near = re.sub(r"[^a-z0-9]+", "-", normalise(_without_accents(name))).strip("-0123456789")
        hint = f"; write it '{near}'" if near else ""
        raise PluginNameError(f"'{name}': a name is small letters, digits and '-' between them, a letter first{hint}")
    if not component[0].isalpha():
        raise PluginNameError(f"'{name}': what follows '{PREFIX}' is the component's name and begins with a letter")


def _title(component: str, kind: PluginKind) -> str:
    """Write a component's name in CamelCase, less the kind that its class ends with: MyLogger, not MyLoggerLogger."""
    title = "".join(part[:1].upper() + part[1:] for part in component.split("-"))
    return title.removesuffix(kind.target.removeprefix("{title}")) or title


def _without_accents(name: str) -> str:
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def _check_package(names: Names) -> None:
    package = names.package
    if keyword.iskeyword(package):
        raise PluginNameError(f"'{names.dist}': '{package}' is a keyword of Python and cannot be imported")
    if package in sys.stdlib_module_names:
        raise PluginNameError(f"'{names.dist}': its package would hide the module '{package}' of Python's own library")
    if package in RESERVED:
        raise PluginNameError(f"'{names.dist}': the package has a '{package}' of its own; choose another name")
    try:
        installed = distribution(names.dist)
    except PackageNotFoundError:
        pass
    else:
        raise PluginNameError(f"'{names.dist}': {names.dist} {installed.version} is installed; choose another name")
    found = importlib.machinery.PathFinder.find_spec(package, search_path())
    if found is not None:
        place = found.origin or ", ".join(found.submodule_search_locations or ())
        raise PluginNameError(f"'{names.dist}': its package would hide the module '{package}' in {place}")
