"""Tests of the checks before a plugin is imported."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.plugins.checks import Refused, check_requirements
from rlcore.plugins.metadata import InstalledPlugin, requirements


class Needing:
    """A dist that needs one package."""

    def __init__(self, line: str) -> None:
        self.requires = [line]
        self.metadata = self

    def get_all(self, name: str) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("required", "version", "fits"),
    [
        (">=0.2.0.dev0", "0.2.0rc1", True),
        (">=0.2.0.dev0", "0.1.0rc1", False),
        (">=0.2.0.dev0", "0.1.9", False),
        (">=0.2", "0.2.1.dev3", True),
        (">=0.2,<0.4", "0.3.0a1", True),
        (">=0.2", "0.2.0rc1", False),
    ],
)
def test_a_pre_release_counts_by_its_place_among_the_versions(
    required: str, version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore._version.__version__", version)
    monkeypatch.setattr("rlcore.plugins.metadata.installed_version", lambda name: version)
    plugin = InstalledPlugin("acme", "1.0", "main", "acme", requires=(f"rlcore{required}",))
    said = ""
    try:
        check_requirements(plugin)
    except Refused as refused:
        said = str(refused)
    assert said == ("" if fits else f"needs rlcore{required}, this is rlcore {version}")
    needing: Any = Needing(f"rlcore{required}")
    assert [each.fits for each in requirements(needing)] == [fits]
