"""Which laws are held against a plugin, what its tests are called, and what is said of one that does not conform."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sites import Site

from rlcore_testing import ConformanceError, LawBroken, check_plugin, conformance
from rlcore_testing import cases as cases_module
from rlcore_testing.cases import MODULES, cases
from rlcore_testing.law import laws_in
from rlcore_testing.laws import dist
from rlcore_testing.rig.worker import Spawned

PLUGIN = """
from rlcore import hookimpl

@hookimpl
def register_rewards(register):
    register("polite", "acme_rewards:polite", config="acme_rewards:Polite", summary="says please")

@hookimpl
def register_rollout_stores(register):
    register("list", "acme_rewards:List", summary="in a list")
"""
TWICE = """
from rlcore import hookimpl

@hookimpl
def register_rollout_stores(register):
    register("both", "acme_rewards:List", summary="in a list")

@hookimpl
def register_pipelines(register):
    register("both", "acme_rewards:List", summary="of another kind")
"""
REWARDS = """
from rlcore.config import config, option

@config
class Polite:
    word: str = option("please", "counted in every output")
    uneven: bool = option(False, "count by the place in the batch instead")

def polite(options):
    def count(outputs):
        return [float(i if options.uneven else text.count(options.word)) for i, text in enumerate(outputs)]
    return count

class List:
    pass
"""
ORDER = "reward-polite-the_order_of_a_batch_changes_nothing"


@pytest.fixture
def acme(site: Site) -> Site:
    site.install("acme", {"acme_plugin.py": PLUGIN, "acme_rewards.py": REWARDS}, entry="acme_plugin")
    return site


@pytest.mark.usefixtures("acme")
def test_a_dist_has_the_laws_of_dists_components_and_their_kinds() -> None:
    found = [case.id for case in cases("acme")]
    assert found[0] == "plugin-it_loads"
    assert {"plugin-the_import_is_light", "reward-polite-the_name_is_legal", ORDER} <= set(found)
    assert "rollout_store-list-the_name_is_legal" in found
    assert not [each for each in found if each.startswith("trainer")]
    assert len(found) == len(set(found))


@pytest.mark.usefixtures("acme")
def test_laws_about_options_apply_only_to_components_with_options() -> None:
    found = [case.id for case in cases("acme")]
    assert "reward-polite-options_round_trip" in found
    assert "rollout_store-list-options_round_trip" not in found


def test_options_go_to_one_of_two_components_that_share_a_name(site: Site) -> None:
    site.install("acme", {"acme_plugin.py": TWICE, "acme_rewards.py": REWARDS}, entry="acme_plugin")
    found = cases("acme", options={"pipeline:both": {"size": 1}}, config={"gen": {}})
    given = {each.id.rpartition("-")[0]: each.subject.options for each in found if each.subject.component}
    assert given == {"pipeline-both": {"size": 1}, "rollout_store-both": {}}
    assert {tuple(each.subject.sections) for each in found} == {("gen",)}
    with pytest.raises(ConformanceError, match="options names 'both'; known names: pipeline:both, rollout_store:both"):
        cases("acme", options={"both": {}})


@pytest.mark.usefixtures("acme")
def test_names_of_dists_are_normalised_as_pip_does() -> None:
    assert [case.id for case in cases("ACME")] == [case.id for case in cases("acme")]


@pytest.mark.usefixtures("acme")
def test_every_law_of_the_kit_has_a_description() -> None:
    for kind, module in MODULES.items():
        laws = laws_in(importlib.import_module(module))
        assert laws, f"no law about {kind}"
        for each in laws:
            assert each.kind == kind
            assert re.fullmatch(r"[a-z][a-z0-9_]+", each.name)
            assert each.text.endswith("."), each.name


@pytest.mark.usefixtures("acme")
def test_a_dist_that_is_not_installed_is_an_error_with_similar_names() -> None:
    with pytest.raises(ConformanceError, match=r"no installed dist called 'acne' .* did you mean 'acme'\?"):
        cases("acne")


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"polit": {}}}, r"options names 'polit'; did you mean 'polite'\?"),
        ({"oracles": {"polit": iter}}, r"oracles names 'polit'; known names: none"),
        ({"config": {"trainers": {}}}, r"config names 'trainers'; did you mean 'trainer'\?"),
        ({"expected_failures": {"it_load": "why"}}, r"expected_failures names 'it_load'; did you mean 'it_loads'\?"),
        ({"expected_failures": {ORDER + "s": "why"}}, f"did you mean '{ORDER}'"),
    ],
)
def test_a_name_of_no_law_or_component_is_refused(given: dict[str, dict[str, str]], message: str) -> None:
    for choose in (conformance, check_plugin):
        with pytest.raises(ConformanceError, match=message):
            choose("acme", **given)


@pytest.mark.slow
def test_a_plugin_that_does_not_load_is_reported_before_its_missing_names(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "worker", Spawned)  # none that loads the components of every installed package
    site.install("acme", {"acme_plugin.py": "raise RuntimeError('no disk')"}, entry="acme_plugin")
    found = cases("acme", options={"polite": {}})
    assert {case.law.kind for case in found} == {"plugin"}
    conformance("acme", options={"polite": {}}, expected_failures={ORDER: "why"})
    with pytest.raises(ConformanceError, match=r"broken +plugin-it_loads .*\n.*is broken: RuntimeError: no disk"):
        check_plugin("acme", options={"polite": {}})


@pytest.mark.usefixtures("acme")
def test_conformance_gives_each_case_its_id_and_the_mark_of_an_expected_failure() -> None:
    expected = {ORDER: "it counts places", "the_name_is_legal": "an old name"}
    parameters = conformance("acme", expected_failures=expected)
    marks = {each.id: each.marks for each in parameters}
    assert [each.id for each in parameters] == [case.id for case in cases("acme")]
    assert {id_ for id_, mark in marks.items() if mark} == {
        ORDER, "reward-polite-the_name_is_legal", "rollout_store-list-the_name_is_legal",
    }  # fmt: skip
    (mark,) = marks[ORDER]
    assert (mark.name, mark.kwargs) == ("xfail", {"strict": True, "reason": "it counts places"})


@pytest.mark.usefixtures("acme")
def test_a_report_has_a_line_for_each_law(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_to_kinds(monkeypatch, "rewards", "component")
    with pytest.raises(ConformanceError) as caught:
        check_plugin("acme", options={"polite": {"uneven": True}})
    text = str(caught.value)
    assert text.startswith("acme: does not conform, ")
    assert re.search(rf"\n  broken     {ORDER}  \(\d\.\d s\)\n             output 'yes, thanks' gets 0.0, but", text)
    assert "\n  held       reward-polite-an_empty_output_is_accepted  (0.0 s)" in text


@pytest.mark.usefixtures("acme")
def test_expected_failures_are_strict_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_to_kinds(monkeypatch, "rewards", "component")
    uneven = {"polite": {"uneven": True}}
    split = "reward-polite-splitting_a_batch_changes_nothing"
    report = check_plugin("acme", options=uneven, expected_failures={ORDER: "places", split: "places"})
    assert report.conforms
    assert str(report).startswith("acme: conforms, ")
    assert {each.id: each.message for each in report.outcomes if each.state == "expected"} == {
        ORDER: "places", split: "places",
    }  # fmt: skip
    with pytest.raises(ConformanceError, match=f"unexpected {ORDER} .*\n.*but the law holds; .*: places"):
        check_plugin("acme", expected_failures={ORDER: "places"})


def test_any_exception_of_a_component_is_in_the_report(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_to_kinds(monkeypatch, "component")
    bad = REWARDS.replace("class List:\n    pass", "raise SystemExit('no licence')")
    site.install("acme", {"acme_plugin.py": PLUGIN, "acme_rewards.py": bad}, entry="acme_plugin")
    with pytest.raises(ConformanceError, match=r"broken +rollout_store-list-the_target_imports .*\n.*no licence"):
        check_plugin("acme")


@pytest.mark.slow
def test_in_pytest_each_law_is_a_test_of_its_own(acme: Site, tmp_path: Path) -> None:
    (tmp_path / "test_acme.py").write_text(
        "import pytest\n"
        "from rlcore_testing import conformance\n"
        f"EXPECTED = {{{ORDER!r}: 'it counts places', 'reward-polite-same_inputs_same_numbers': 'it does not'}}\n"
        "@pytest.mark.parametrize('law', conformance(\n"
        "    'acme', options={'polite': {'uneven': True}}, expected_failures=EXPECTED))\n"
        "def test_law(law):\n"
        "    law()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-k", "a_batch or same_inputs", "test_acme.py"],
        env={"PATH": "", "PYTHONPATH": f"{acme.folder}:{Path(__file__).parents[2]}", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = done.stdout
    assert done.returncode == 1, said
    assert f"XFAIL test_acme.py::test_law[{ORDER}] - it counts places" in said
    split = "reward-polite-splitting_a_batch_changes_nothing"
    assert f"FAILED test_acme.py::test_law[{split}]" in said
    assert "rlcore_testing.law.LawBroken: output 'No!' gets 1.0, but in a batch of its own 0.0" in said
    assert "FAILED test_acme.py::test_law[reward-polite-same_inputs_same_numbers]" in said
    assert "[XPASS(strict)] it does not" in said
    assert "2 failed" in said
    assert "1 xfailed" in said


def test_the_kit_and_laws_of_light_components_import_nothing_heavy() -> None:
    light = ("rlcore_testing", *(MODULES[kind] for kind in ("plugin", "component", "rewards", "loggers", "pipelines")))
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module(name)\n"
        "    heavy = sorted({'torch', 'transformers'} & set(sys.modules))\n"
        "    if heavy: sys.exit(f'{name} imports {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def _keep_to_kinds(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Leave laws of other kinds, and those that start processes, out of a test that is about reports."""
    slow = {"another_process_same_numbers", "options_are_light"}
    every = cases_module._laws
    monkeypatch.setattr(
        cases_module, "_laws", lambda kind: [each for each in every(kind) if kind in kinds and each.name not in slow]
    )


@pytest.mark.usefixtures("acme")
def test_laws_apply_to_a_component_whose_declarations_cannot_be_read(site: Site) -> None:
    trainers = """
        from rlcore import hookimpl

        @hookimpl
        def register_trainers(register):
            register("bare", "acme_bare:Bare", summary="declares nothing")
            register("gone", "acme_bare:Gone", config="acme_bare:Options", summary="is not there")

        class Bare:
            pass
    """
    site.install("acme-bare", {"acme_bare.py": textwrap.dedent(trainers)}, entry="acme_bare")
    found = {case.id: case for case in cases("acme-bare")}
    with pytest.raises(AttributeError, match="needs"):
        found["trainer-bare-it_learns"]()
    with pytest.raises(LawBroken, match=r"cannot load its target 'acme_bare:Gone'"):
        found["trainer-gone-the_target_imports"]()


@pytest.mark.usefixtures("acme")
def test_conformance_without_pytest_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(ConformanceError, match=r"pip install 'rlcore\[testing\]', or call check_plugin"):
        conformance("acme")
