"""Tests of the checks before a plugin is imported."""

from __future__ import annotations

import pytest

from rlcore.plugins.discovery import Refused, check_requirements
from rlcore.plugins.metadata import InstalledPlugin


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
    plugin = InstalledPlugin("acme", "1.0", "main", "acme", requires=(f"rlcore{required}",))
    said = ""
    try:
        check_requirements(plugin)
    except Refused as refused:
        said = str(refused)
    assert said == ("" if fits else f"needs rlcore{required}, this is rlcore {version}")
