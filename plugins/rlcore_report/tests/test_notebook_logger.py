"""Tests of the output of runs in notebooks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import IPython.display
import nbclient
import nbformat
import pytest
from console_screens import SomeRun
from report_runs import make_run

import rlcore
from rlcore.checkpoints.run_folder import RunDir
from rlcore.loggers.console import ConsoleConfig
from rlcore.plugins.registry import registries
from rlcore_report.console import on_rich
from rlcore_report.notebook import NotebookLogger, is_notebook
from rlcore_report.plugin import wrap_component
from rlcore_testing.small import make_gpt2, make_tokenizer

TRAINING = """
import rlcore
from rlcore_testing.small import make_gpt2, make_tokenizer

result = rlcore.train(
    make_gpt2(), tokenizer=make_tokenizer(), samples=["abc", "bcd"], eval_prompts=["a"],
    trainer={"name": "sft", "batch_size": 1}, gen={"max_new_tokens": 3}, run={"steps": 30, "name": "run"},
    eval={"every": 10},
)
"""


class Output:
    """Stand-in of a display handle: what was displayed, and the pages that replaced each other."""

    def __init__(self) -> None:
        self.displayed: list[Any] = []
        self.pages: list[str] = []

    def display(self, page: Any, *, display_id: bool = False) -> Output:
        self.displayed.append(page)
        return self

    def update(self, page: Any) -> None:
        self.pages.append(page._repr_html_())


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    output = Output()
    monkeypatch.setattr(IPython.display, "display", output.display)
    monkeypatch.setattr("rlcore_report.notebook.REFRESH_S", 0.0)
    return output


def test_lines_completions_and_the_summary_replace_each_other_in_one_output(tmp_path: Path, output: Output) -> None:
    run = SomeRun(tmp_path, total_steps=30)
    logger = NotebookLogger(ConsoleConfig(), run)
    for step in range(1, 31):
        run.step = step
        logger.metrics(step, {"loss/total": 1 / step, "time/step_s": 0.5})
    logger.completions(30, [{"prompt": "<b>", "output": "x\x1b", "reward": 1.5}])
    logger.close(None)
    *_, before, last = output.pages
    assert '<progress value="30" max="30"></progress> step 30 of 30' in last
    assert re.findall(r"<tr><td>step</td><td>(\d+)</td>", last) == [str(step) for step in range(19, 31)]
    assert "<td>&lt;b&gt;</td><td>x\\x1b</td><td>1.5000</td>" in last
    assert ("<pre>finished" in last, "<pre>" in before) == (True, False)
    assert len(output.displayed) == 1


def test_the_end_of_a_run_shows_its_verdict_its_folder_and_the_curve_of_its_main_metric(
    tmp_path: Path, output: Output
) -> None:
    run = make_run(tmp_path / "<a>", steps=8)
    RunDir(run).write_end(3, "failed", "ValueError: <b>")
    logger = NotebookLogger(ConsoleConfig(), SomeRun(run))
    logger.close(ValueError("<b>"))
    last = output.pages[-1]
    assert "<div>Failed after step 8 of 8: ValueError: &lt;b&gt;. There is no checkpoint" in last
    assert "<div>Entropy collapsed from step" in last
    assert f"<div>folder: {str(run).replace('<a>', '&lt;a&gt;')}</div>" in last
    assert last.count("<polyline") == 2  # of the training and of the evaluations
    assert "eval/reward/mean, 0." in last
    empty = NotebookLogger(ConsoleConfig(), SomeRun(tmp_path))
    empty.close(None)
    assert "There are too few metrics for a verdict." in output.pages[-1]
    assert "<svg" not in output.pages[-1]


def test_a_script_that_imports_ipython_does_not_count_as_a_notebook() -> None:
    assert "IPython" in sys.modules
    assert not is_notebook()
    assert wrap_component(registries().loggers.get("console")) is on_rich


@pytest.mark.nightly
def test_a_run_in_a_notebook_has_one_output(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (TRAINING, "print(result.metrics['loss/total'] > 0)")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [each for each in notebook.cells[0].outputs if each.output_type == "display_data"]
    assert {each.output_type for each in notebook.cells[0].outputs} <= {"display_data", "stream"}
    (table,) = shown
    assert "step 30 of 30" in table.data["text/html"]
    assert "finished" in table.data["text/html"]
    assert "<polyline" in table.data["text/html"]
    assert notebook.cells[1].outputs[0].text == "True\n"


def test_the_result_of_a_run_is_a_small_table_in_a_notebook(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), samples=["abc", "bcd"], trainer={"name": "sft", "batch_size": 1},
        loggers=[], run={"steps": 2, "name": "<b>", "root": str(tmp_path)},
    )  # fmt: skip
    rows = re.findall(r"<tr>(.*?)</tr>", result._repr_html_())
    table = dict(re.findall(r"<td>(.*?)</td>", row) for row in rows[1:])
    assert next(iter(table)) == "loss/total"
    assert float(table["loss/total"]) == pytest.approx(result.metrics["loss/total"], abs=1e-3)
    assert (table["steps"], table["folder"]) == ("2", f"{tmp_path}/&lt;b&gt;")
    assert len(rows) <= 9
