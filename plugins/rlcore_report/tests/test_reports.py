"""Laws of reports: every run ends with one, and damaged, unfinished, foreign and large run folders have one too."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from report_runs import HOSTILE, make_run, write_lines

import rlcore
from rlcore.checkpoints.claim import RunLock
from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main
from rlcore_report import metric_groups as series
from rlcore_report.html_page import fill_page, report_page, to_script
from rlcore_report.metric_groups import MAX_POINTS, Series, band, read_series, thinned
from rlcore_report.page_data import page_data
from rlcore_report.run_list import ReportServer
from rlcore_report.run_record import read_run
from rlcore_report.samples_on_page import MAX_ROWS, MAX_STEPS, read_images, read_samples


def data_of(page: str) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_writes_a_report_at_its_end_unless_disabled(
    wanted: bool, tmp_path: Path, tiny_gpt2: Any, char_tokenizer: Any
) -> None:
    result = rlcore.train(
        tiny_gpt2, tokenizer=char_tokenizer, trainer="sft", samples=["ab", "ba"],
        run={"root": str(tmp_path), "name": "short", "steps": 2, "report": wanted}, loggers=[],
    )  # fmt: skip
    assert RunDir(result.run_dir).report.exists() == wanted
    if wanted:
        data = data_of(RunDir(result.run_dir).report.read_text())
        (curve,) = next(c["curves"] for g in data["groups"] for c in g["charts"] if c["name"] == "loss/total")
        assert curve["steps"] == [1, 2]
        assert data["runs"][0]["end"] == {
            "state": "finished", "sentence": "Finished at step 2 of 2.", "command": "", "level": "good",
        }  # fmt: skip
        answer = data["runs"][0]["answer"]
        assert answer["device"]
        assert answer["change"]["metric"] == "loss/total"
        assert answer["best"]["line"].startswith("transformers.AutoModelForCausalLM.from_pretrained(")
        changed = {row["path"]: row["values"] for row in data["options"] if row["changed"]}
        assert changed["run.steps"] == ["2"]
        assert "trainer.optimizer.lr" not in changed


def test_a_report_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, tiny_gpt2: Any, char_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlcore_report.html_page.write_report", full)
    result = rlcore.train(
        tiny_gpt2, tokenizer=char_tokenizer, trainer="sft", samples=["ab"], loggers=[],
        run={"root": str(tmp_path), "name": "short", "steps": 1},
    )  # fmt: skip
    assert result.metrics["loss/total"] > 0


def test_the_report_of_a_run_without_metrics_states_that(tmp_path: Path) -> None:
    run = make_run(tmp_path / "empty", steps=2)
    for file in (RunDir(run).metrics, RunDir(run).completions, RunDir(run).rollouts):
        file.unlink()
    data = data_of(report_page([run]))
    assert data["groups"] == data["verdicts"][0] == []
    assert "has no metrics" in data["runs"][0]["notes"][0]


def test_the_report_of_a_running_run_is_marked_and_leaves_out_an_incomplete_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "going", steps=4)
    with RunDir(run).metrics.open("a") as file:
        file.write('{"step": 5, "reward/mean": 0.')
    lock = RunLock(run)
    record = read_run(run)
    lock.release()
    assert record.end.sentence == "Still running at step 4 of 4."
    assert read_run(run).end.state == "finished"
    assert record.last_step == 4


def test_a_run_of_another_version_and_a_damaged_configuration_are_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", steps=4)
    text = RunDir(run).config.read_text()
    RunDir(run).config.write_text(
        re.sub(r"rlcore [\d.]+\S*;", "rlcore 0.0.7;", text, count=1) + "future: {option: 1}\n"
    )
    data = data_of(report_page([run]))
    assert "0.0.7" in data["runs"][0]["notes"][0]
    assert {row["path"]: row["default"] for row in data["options"]}["future.option"] is None
    RunDir(run).config.write_text("# rlcore run\nrun: [")
    record = read_run(run)
    assert "config.yaml cannot be read" in record.notes[0]
    assert data_of(report_page([run]))["groups"]


def test_no_text_of_a_run_can_close_the_script_element_of_the_page() -> None:
    text = to_script({"text": HOSTILE + "<!-- & ]]>\ud800\u2028"})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text)["text"].startswith(HOSTILE)


def test_a_title_is_escaped_in_html() -> None:
    assert "<title>rlcore: a &lt;b&gt; &amp;amp; c</title>" in fill_page({}, title="a <b> &amp; c")


def test_a_later_value_of_the_same_step_replaces_the_earlier() -> None:
    one = Series(np.array([1, 1, 2, 4]), np.array([5.0, 7.0, 9.0, 3.0]))
    other = Series(np.array([1, 2, 2, 3]), np.array([1.0, 8.0, 2.0, 6.0]))
    for runs in ([one, other], [other, one]):
        found = band(runs)
        assert found.mean.steps.tolist() == [1, 2]
        assert found.mean.values.tolist() == [4.0, 5.5]
        assert (found.low.values.tolist(), found.high.values.tolist()) == ([1.0, 2.0], [7.0, 9.0])


def test_the_last_interval_of_thinned_steps_may_be_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 6)  # three stretches
    one, other = (Series(np.arange(7), np.arange(7.0) + shift) for shift in (0, 10))
    found = band([one, other])
    assert found.mean.steps.tolist() == [0, 3, 6]
    assert found.mean.values.tolist() == [6.0, 9.0, 11.0]
    assert found.low.values.tolist() == [0.0, 3.0, 6.0]
    assert found.high.values.tolist() == [12.0, 15.0, 16.0]
    for count in range(7, 24):
        values = np.sin(np.arange(count) * 2.0)
        thin = thinned(Series(np.arange(count), values), num_points=6)
        assert len(thin.steps) <= 6
        assert (thin.steps[0], thin.steps[-1]) == (0, count - 1)
        assert (thin.values.min(), thin.values.max()) == (values.min(), values.max())
        assert np.array_equal(values[thin.steps], thin.values)


def test_thinning_keeps_peaks_and_both_ends() -> None:
    values = np.zeros(500_000)
    values[123_456], values[321_000], values[77] = 9.0, -7.0, np.nan
    found = thinned(Series(np.arange(500_000), values))
    assert len(found.steps) <= MAX_POINTS
    assert (np.nanmax(found.values), np.nanmin(found.values)) == (9.0, -7.0)
    assert (found.steps[0], found.steps[-1]) == (0, 499_999)
    assert found.steps[int(np.nanargmax(found.values))] == 123_456


def test_metrics_are_read_in_the_order_of_steps_with_nulls_and_text_as_nan(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write_lines(file, [{"step": 1, "a": 1, "b": None}, {"step": 1, "eval/a": 7.5}, {"step": 2, "b": 2.0}])
    with file.open("a") as lines:
        lines.write('nonsense\n[1]\n{"step": "x", "a": 5}\n{"step": 3, "a": 3.0, "b": "text"}\n{"step": 4, "a": 4.0}')
    found = read_series(file)
    assert {name: series.steps.tolist() for name, series in found.items()} == {
        "a": [1, 3], "b": [1, 2, 3], "eval/a": [1],
    }  # fmt: skip
    assert found["a"].values.tolist() == [1.0, 3.0]
    np.testing.assert_equal(found["b"].values, [np.nan, 2.0, np.nan])


def test_a_band_is_the_mean_and_the_range_at_common_steps() -> None:
    found = band([
        Series(np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0])), Series(np.array([2, 3, 4]), np.array([4.0, 0.0, 9.0])),
    ])  # fmt: skip
    assert found.mean.steps.tolist() == [2, 3]
    assert found.mean.values.tolist() == [3.0, 1.5]
    assert (found.low.values.tolist(), found.high.values.tolist()) == ([2.0, 0.0], [4.0, 3.0])
    long = Series(np.arange(5000), np.arange(5000.0))
    reduced = band([long, Series(long.steps, long.values + 2)])
    assert len(reduced.mean.steps) <= 1000
    assert reduced.mean.values[0] == pytest.approx(long.values[:5].mean() + 1)
    assert (reduced.low.values[0], reduced.high.values[0]) == (0.0, 6.0)


@pytest.mark.slow
def test_a_page_has_the_first_and_last_step_of_many_completions(tmp_path: Path) -> None:
    file = tmp_path / "completions.jsonl"
    rows = [{"step": step, "prompt": "p", "output": "x" * 9000} for step in range(100) for _ in range(MAX_ROWS + 5)]
    write_lines(file, rows)
    found = read_samples(file)
    steps = list(dict.fromkeys(row.step for row in found.rows))
    assert (steps[0], steps[-1], len(steps)) == (0, 99, MAX_STEPS)
    assert (found.num_steps, found.num_rows) == (100, len(rows))
    assert sum(len(row.output) for row in found.rows) < 4_000_000


def test_grids_of_images_are_embedded_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(9):
        (tmp_path / f"step-{i:08d}.png").write_bytes(bytes([i]) * 100)
    assert len(read_images(tmp_path)) == 9
    monkeypatch.setattr("rlcore_report.samples_on_page.MAX_IMAGE_BYTES", 350)
    assert [name[-1] for name, _ in read_images(tmp_path)] == ["0", "4", "8"]
    assert read_images(tmp_path)[0][1].startswith("data:image/png;base64,AAAA")


def test_the_command_writes_one_page_of_several_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name, steps=6)
    assert main(["report", "a"]) == 0
    assert "runs/a/report.html" in capsys.readouterr().out
    assert main(["report", "a", "runs/b", "--out", "both.html"]) == 0
    assert [run["name"] for run in data_of(Path("both.html").read_text())["runs"]] == ["a", "b"]
    assert main(["report", "c"]) == 1
    assert "no run in c" in capsys.readouterr().err


def test_two_runs_are_compared_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run(tmp_path / "a", steps=20)
    b = make_run(tmp_path / "b", steps=20, level=3.0, gen={"temperature": 0.5})
    assert main(["compare", str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (option,) = (line for line in lines if "temperature" in line)
    assert option.split() == ["gen.temperature", "1.0", "0.5"]
    (reward,) = (line for line in lines if line.startswith("reward of the last evaluation"))
    assert reward.split()[5:] == ["20.10", "60.30", "40.20", "±", "0.4969", "3", "evaluation", "rows", "higher"]
    assert any("Entropy collapsed" in line for line in lines)


def test_the_server_answers_only_requests_that_name_this_machine(tmp_path: Path) -> None:
    with ReportServer([make_run(tmp_path / "run", steps=4)]) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert server.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(server.url + "data.json?run=run") as answered:
            assert json.load(answered)["runs"][0]["step"] == 4
        for address, host, code in ((server.url, "evil.example", 403), (server.url + "../metrics.jsonl", None, 404)):
            request = urllib.request.Request(address, headers={"Host": host} if host else {})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == code
            refused.value.close()
        server.shutdown()


@pytest.mark.nightly
def test_two_hundred_megabytes_of_metrics_give_a_small_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "large", steps=4)
    row = {f"group{i % 8}/metric{i}": 0.123456789 * i for i in range(30)}
    line = json.dumps(row)[1:]
    with RunDir(run).metrics.open("w") as file:
        for step in range(200_000_000 // len(line)):
            file.write(f'{{"step": {step}, {line}\n')
    assert RunDir(run).metrics.stat().st_size > 1.9e8
    page = report_page([run])
    assert len(page) < 5e6
    assert len(page_data([read_run(run)])["groups"][0]["charts"][0]["curves"][0]["steps"]) <= MAX_POINTS
