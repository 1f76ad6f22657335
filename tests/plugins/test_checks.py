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
    ("version", "fits"),
    [("0.2.0rc1", True), ("0.2.0.dev3", True), ("0.3.0a1", True), ("0.1.0rc1", False), ("0.1.9", False)],
)
def test_a_pre_release_counts_by_its_place_among_the_versions(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore._version.__version__", version)
    monkeypatch.setattr("rlcore.plugins.metadata.installed_version", lambda name: version)
    plugin = InstalledPlugin("acme", "1.0", "main", "acme", requires=("rlcore>=0.2.0.dev0",))
    if fits:
        check_requirements(plugin)
    else:
        with pytest.raises(Refused, match=rf"needs rlcore>=0\.2\.0\.dev0, this is rlcore {version}"):
            check_requirements(plugin)
    needing: Any = Needing("rlcore>=0.2.0.dev0")
    assert [each.fits for each in requirements(needing)] == [fits]
