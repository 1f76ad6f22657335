"""Tests of the report: its structure, in an HTML parser, and once its looks in headless Chromium."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import four_views
from sweep_fakes import make_sweep

from rlcore.safe_text import visible
from rlcore_tools.sweep.report import Scale, importances, write_report
from rlcore_tools.sweep.screen import Study, summary
from rlcore_tools.sweep.sweep_command import open_study
from rlcore_tools.sweep.sweep_folder import SweepFolder, claim
from rlcore_tools.sweep.sweep_options import Sweep

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b[31m \u202e\"'"
LR = "trainer.optimizer.lr"


class Page(HTMLParser):
    """The elements, texts and links of a page; it fails if elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [each for name, each in self.found if name == tag and attributes.items() <= each.items()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Study, SweepFolder]:
    """A sweep of eight trials: the metric is 1 minus the distance of log10(lr) from -4; two are pruned, one failed."""
    tmp_path = tmp_path_factory.mktemp("report")
    sweep = make_sweep(
        tmp_path, f"{LR}=[1e-6, 1e-5, 1e-4, 1e-3]", "data.system_prompt=choice(" + _quoted(HOSTILE) + ", plain)",
        sampler="grid",
    )  # fmt: skip
    sweep.folder.mkdir()
    folder = claim(sweep)
    study = open_study(sweep, folder)
    for number, distance in enumerate((2, 2, 1, 1, 0, 0, 1, 1)):
        trial = study.ask()
        assert trial is not None
        study.report(number, 10, 0.5 - distance)
        if number in (0, 1):
            study.prune(number)
        elif number == 7:
            study.fail(number, f"RewardError: {HOSTILE}")
        else:
            study.report(number, 20, 1.0 - distance)
            study.complete(number, 1.0 - distance)
        folder.run(number).mkdir()
        (folder.run(number) / "report.html").touch()
    return sweep, study, folder


def _quoted(text: str) -> str:
    return (
        '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\x1b", "\\e").replace("\u202e", "\\u202e") + '"'
    )


@pytest.mark.slow
def test_the_page_has_every_trial_the_best_one_and_no_script(made: tuple[Sweep, Study, SweepFolder]) -> None:
    sweep, study, folder = made
    text = write_report(sweep, study, folder).read_text(encoding="utf-8")
    page = Page(text)
    assert {"script", "img", "link", "iframe"}.isdisjoint(name for name, _ in page.found)
    assert not [key for _, given in page.found for key in given if key.startswith("on")]
    links = [str(link["href"]) for link in page.all("a")]
    assert links == [f"trials/{number:05d}/report.html" for number in range(8)]
    assert "8 trials: 5 done, 2 pruned, 1 failed; eval/reward/mean is maximised" in page.text
    assert "Best: trial 4, eval/reward/mean 1" in page.text
    assert f"rlcore train {folder.best}" in page.text
    assert page.text.count(visible(HOSTILE)) >= 5  # titles, labels and the table show it as it is
    assert visible(f"RewardError: {HOSTILE}") in page.text
    assert len(page.all("td", **{"class": "done"})) == 5
    assert len(page.all("circle", **{"class": "done"})) == 4
    assert len(page.all("circle", **{"class": "best"})) == 1
    assert len(page.all("circle", **{"class": "pruned"})) == 2
    assert len(page.all("path", **{"class": "cross"})) == 1
    lines = [str(line["class"]) for line in page.all("polyline") if str(line["class"]).startswith("trial")]
    assert lines.count("trial done best") == 2  # in the parallel coordinates, and over steps
    assert lines.count("trial done") == 8
    assert lines.count("trial pruned") == 4
    assert lines.count("trial failed") == 1  # its metric over steps
    assert len(page.all("rect", **{"class": "bar"})) == 2


def test_the_option_that_decides_is_the_most_important(made: tuple[Sweep, Study, SweepFolder]) -> None:
    _, study, _ = made
    shares, why_not = importances(study)
    assert why_not == ""
    assert shares[0][0] == LR
    assert shares[0][1] > 0.9
    assert sum(share for _, share in shares) == pytest.approx(1.0)


def test_a_scale_places_numbers_by_their_differences_or_their_ratios() -> None:
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 2.5, 10)] == [100, 125, 200]
    logarithmic = Scale(1e-6, 1e-2, 300, 100, is_logarithmic=True)
    assert [logarithmic(value) for value in (1e-6, 1e-4, 1e-2)] == [300, 200, 100]
    assert logarithmic.ticks() == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
    assert Scale(3, 3, 0, 10)(3) == 5


def test_a_sweep_without_finished_trials_has_a_page_that_says_so(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1, 2]")
    sweep.folder.mkdir()
    folder = claim(sweep)
    study = open_study(sweep, folder)
    page = Page(write_report(sweep, study, folder).read_text(encoding="utf-8"))
    assert "No trial has finished yet." in page.text
    assert "estimated from 4 trials with a metric; there are 0" in page.text
    assert summary([]) == "0 trials"


@pytest.mark.slow
def test_it_opens_in_four_views_and_fetches_nothing(made: tuple[Sweep, Study, SweepFolder], browser: Any) -> None:
    file = write_report(*made)
    for opened in four_views(browser, file.as_uri(), name="sweep"):
        page = opened.page
        assert page.locator("h2").all_inner_texts() == [
            "History", "Importance of options", "Parallel coordinates", "eval/reward/mean over steps", "Trials",
        ]  # fmt: skip
        assert page.evaluate("window.ran") is None
        line = page.locator("polyline.trial.best").first
        assert "trial 4, done, 1" in line.locator("title").text_content()
        assert line.evaluate("line => getComputedStyle(line).stroke") == "rgb(47, 111, 222)"  # that of the best rank
        assert opened.requests == [file.as_uri()]
