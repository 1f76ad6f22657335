"""The conformance kit: the laws a published plugin must keep, each a test of its own.

    import pytest
    from rlcore.testing import conformance

    @pytest.mark.parametrize("law", conformance("acme-algo"))
    def test_law(law):
        law()

What is checked follows from the kinds of the plugin's components and from what they declare. Everything happens on the
CPU, with models and tokenizers made on the spot.
"""

from __future__ import annotations

from rlcore.testing.cases import Case, Report, check_plugin, conformance
from rlcore.testing.laws import ConformanceError, Law, LawBroken, Subject, law

__all__ = [
    "Case",
    "ConformanceError",
    "Law",
    "LawBroken",
    "Report",
    "Subject",
    "check_plugin",
    "conformance",
    "law",
]
