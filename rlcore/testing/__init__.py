"""The conformance kit: the laws a published plugin must keep, each a test of its own.

In the tests of a plugin, which needs no more than this file and `pip install 'rlcore[testing]'`:

    import pytest
    from rlcore.testing import conformance

    @pytest.mark.parametrize("law", conformance("acme-algo"))
    def test_law(law):
        law()

Each law is a test that is called by it: `trainer-algo-same_seed_same_numbers`, or `plugin-the_import_is_light` for one
about the whole package. Which laws are held follows from the kinds of the components and from what they declare.
Without pytest, `print(check_plugin("acme-algo"))` does the same, and raises a `ConformanceError` that reports on every
law if one is broken. Both take:

* `options`, `{"algo": {"rollouts": 8}}`: what a component is built with in every law. Give small numbers, or what a
  component cannot do without.
* `expected_failures`, `{"trainer-algo-two_processes_equal_one": "why"}`: laws that cannot be kept, with the reason. It
  is strict: one that is kept all the same fails.

Everything happens on the CPU, with models and tokenizers made on the spot; nothing is downloaded. Some laws start
processes of their own, so the plugin must be installed, with `pip install -e .` at least.
"""

from __future__ import annotations

from rlcore.testing.cases import Case, Outcome, Report, check_plugin, conformance
from rlcore.testing.law import ConformanceError, Law, LawBroken, Subject, law

__all__ = [
    "Case",
    "ConformanceError",
    "Law",
    "LawBroken",
    "Outcome",
    "Report",
    "Subject",
    "check_plugin",
    "conformance",
    "law",
]
