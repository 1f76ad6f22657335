"""What errors say about the section `sweep`, which is no section of a run."""

from __future__ import annotations

from rlcore.config.yaml_files import Synonym

SECTION = Synonym("sweep", (), "it is read by `rlcore sweep FILE.yaml`, which writes best.yaml for `rlcore train`")


def find_synonym(name: str, kind: str) -> Synonym | None:
    """Return what replaces the section `sweep` in a run."""
    return SECTION if (name, kind) == ("sweep", "options") else None
