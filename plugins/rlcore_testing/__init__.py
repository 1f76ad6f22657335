"""Conformance kit: the laws that a published plugin must keep, each run as a separate test.

A plugin's test file, which needs only `pip install 'rlcore[testing]'`:

    import pytest
    from rlcore_testing import conformance

    @pytest.mark.parametrize("law", conformance("acme-algo"))
    def test_law(law):
        law()

Each test has the name of its law: `trainer-algo-same_seed_same_numbers`, or `plugin-the_import_is_light` for a law
about the whole package. The kinds of the components and the properties they declare select the laws. Without pytest,
`print(check_plugin("acme-algo"))` runs the same checks, and raises a `ConformanceError` with a report on every law if
one is broken. Both accept:

* `options`, `{"algo": {"rollouts": 8}}`: options a component is built with in every law. Pass small sizes, and options
  that have no usable default. Where two components share a name, `{"trainer:algo": {"rollouts": 8}}`.
* `config`, `{"gen": {"top_k": 5}}`: sections of the configuration of the runs in which trainers are checked.
* `oracles`, `{"algo": my_loss}`: the losses of trainers in plain torch (`Oracle`), which they must equal.
* `remotes`, `{"far": Remote(disturb=..., faults=("dies",))}`: samplers whose workers are other processes (`Remote`),
  and what the laws can let happen to them.
* `expected_failures`, `{"trainer-algo-two_processes_equal_one": "why"}`: laws that cannot hold, with the reason. They
  are strict: if such a law holds, its test fails.

All checks run on the CPU, with models and tokenizers created in memory; nothing is downloaded. Some laws start new
processes, so the plugin must be installed, for example with `pip install -e .`.
"""

from __future__ import annotations

from rlcore_testing.cases import Case, Outcome, Report, check_plugin, conformance
from rlcore_testing.law import ConformanceError, Law, LawBroken, Subject, law
from rlcore_testing.recorded import Oracle, Recorded, Remote, Response

__all__ = [
    "Case",
    "ConformanceError",
    "Law",
    "LawBroken",
    "Oracle",
    "Outcome",
    "Recorded",
    "Remote",
    "Report",
    "Response",
    "Subject",
    "check_plugin",
    "conformance",
    "law",
]
