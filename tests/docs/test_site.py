"""Tests of the documentation as a site: it builds without a warning, and a browser opens every page of it."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import VIEWS, assert_fits, assert_scheme, four_views, watch

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))
make_site = pytest.importorskip("make_site", reason="Sphinx and its extensions are not installed (rlcore's extra dev)")
from website import navigation, staging, subjects  # noqa: E402  # needs the path set above
from website.addresses import docname, pages  # noqa: E402
from website.markdown_docstrings import translate  # noqa: E402


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs/make_site.py"), "--into", str(into)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return into


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_page(base_url=address, color_scheme="light", viewport={"width": 1400, "height": 900})
    opened = watch(page)
    yield page
    assert (opened.problems, opened.outside) == ([], [])
    page.close()


@pytest.mark.nightly
def test_every_page_links_to_the_pages_before_and_after_it(site: Path) -> None:
    """The pages are read in the order of the index; one with a table of pages is followed by those."""
    names = [name for names in navigation.sections().values() for name in names]
    parents = {docname(page) for page in navigation.PARENTS} | {navigation.API[1]}
    assert len(names) > 40
    for before, name, after in zip(names, names[1:], names[2:], strict=False):
        page = site / f"{name}.html"
        links = dict(re.findall(r'<a class="(prev|next)-page" href="([^"#]+)', page.read_text(encoding="utf-8")))
        found = {side: (page.parent / link).resolve() for side, link in links.items()}
        assert found["next"] == (site / f"{after}.html").resolve() or name in parents, (name, links)
        assert found["prev"] == (site / f"{before}.html").resolve() or before in parents, (name, links)


@pytest.mark.nightly
def test_every_page_can_be_reached_from_the_first_by_links_that_readers_see(site: Path) -> None:
    """Links of the contents and of the text, without those to the pages before and after."""
    unseen, seen = [site / "index.html"], {site / "index.html"}
    while unseen:
        page = unseen.pop()
        text = re.sub(r'<a class="(?:prev|next)-page".*?</a>', "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = {(page.parent / link).resolve() for link in re.findall(r'<a [^>]*href="([^"#:?]+\.html)', text)}
        unseen += sorted(links - seen)
        seen |= links
    assert len(seen) > 100
    made_by_sphinx = {"genindex.html", "py-modindex.html", "search.html"}
    assert {page.name for page in set(site.rglob("*.html")) - seen} <= made_by_sphinx


@pytest.mark.nightly
def test_every_page_opens_without_errors_from_one_host_and_fits_in_four_views(site: Path, tab: Any) -> None:
    """Each page is loaded once; its width and its scheme follow the browser, and are those of a page loaded anew."""
    for page in sorted(site.rglob("*.html")):
        tab.goto(page.relative_to(site).as_posix())
        for width, scheme in (VIEWS[0], VIEWS[1], VIEWS[3], VIEWS[2]):  # one change each
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme)
            assert_fits(tab, f"{page.name}, {width} px, {scheme}")
            assert_scheme(tab, scheme)


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["index.html", "runs.html", "api/rlcore.html"])
def test_a_page_opens_in_four_views(browser: Any, address: str, page: str) -> None:
    for opened in four_views(browser, address + page, name=f"site-{Path(page).stem}"):
        assert opened.page.locator("h1").first.is_visible()


IN_OTHER_WORDS = [
    ("2 gpus", "Several processes and machines"), ("train on 4 GPUs", "Several processes and machines"),
    ("sampling temperature", "Configuration"), ("own plugin publish", "Publish a plugin"),
    ("completions of a run", "Run folders"), ("resume after crash", "Resume, extend and move runs"),
    ("my own reward function", "Data and rewards"), ("run out of memory", "Memory"), ("log to wandb", "Loggers"),
    ("save the best checkpoint", "Run folders"), ("how do I use LoRA", "Fine-tune a chat model with LoRA"),
    ("cuda oom", "Memory"), ("search hyperparameters", "Sweeps"),
    ("feedback of humans", "rlcore-rewards"), ("how to install", "Install and first run"), ("apple mac", "On a GPU"),
]  # fmt: skip
"""What people type that is no subject, nor a part of one, with the page that answers it."""


@pytest.mark.nightly
def test_search_finds_the_page_of_what_people_look_for_among_the_first_three(tab: Any) -> None:
    wanted = [
        ("conformance kit", "The conformance kit"), ("temperature", "Configuration"), ("completions", "Run folders"),
        ("two GPUs", "Several processes and machines"), ("reward columns", "Data and rewards"),
        ("publish a plugin", "Publish a plugin"), ("KL", "Algorithms"), ("export model", "Run folders"),
        ("multiple GPUs", "Several processes and machines"), ("tool calls", "Environments and tools"),
        ("custom reward", "Data and rewards"),
        ("OOM", "Memory"), ("hyperparameter search", "Sweeps"), ("human feedback", "rlcore-rewards"), *IN_OTHER_WORDS,
    ]  # fmt: skip
    for words, title in wanted:
        tab.goto("index.html")
        tab.fill("input.sidebar-search", words)
        tab.keyboard.press("Enter")
        summary = tab.locator(".search-summary", has_text="found").inner_text()  # "found one page", "found 7 pages"
        count = int(several[1]) if (several := re.search(r"found (\d+)", summary)) else 1
        found = tab.locator("ul.search > li > a")
        found.nth(min(count, 3) - 1).wait_for()
        assert title in found.all_inner_texts()[:3], words


def test_queries_in_other_words_are_no_part_of_a_subject() -> None:
    words = [word for of_page in subjects.SUBJECTS.values() for word in of_page]
    assert [query for query, _ in IN_OTHER_WORDS if any(query.lower() in word for word in words)] == []


def test_subjects_are_of_pages_that_exist_and_each_leads_to_one() -> None:
    assert {Path(page.partition("#")[0]) for page in subjects.SUBJECTS} <= set(pages())
    for page, _, heading in (each.partition("#") for each in subjects.SUBJECTS):
        assert page in subjects.SUBJECTS  # the first index of a page is that of the page itself
        assert not heading or re.search(rf"^##+ {re.escape(heading)}$", (ROOT / page).read_text(), re.MULTILINE)
    words = [word for of_page in subjects.SUBJECTS.values() for word in of_page]
    assert len(words) == len(set(words))
    assert all(word == word.lower() for word in words)


@pytest.mark.nightly
def test_search_finds_the_section_in_front_of_every_page(tab: Any) -> None:
    for words in ("learning rate too high", "gradient accumulation", "early stopping"):
        tab.goto("index.html")
        tab.fill("input.sidebar-search", words)
        tab.keyboard.press("Enter")
        tab.locator(".search-summary", has_text="found").wait_for()
        first = tab.locator("ul.search > li > a").first
        assert first.inner_text() == f"Training: {words}"
        first.click()
        tab.wait_for_url("**/training.html*#index-*")


@pytest.mark.nightly
def test_the_front_page_is_short_and_leads_on(site: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", (site / "index.html").read_text().partition("<article")[2].partition("</article")[0])
    assert len(text.split()) < 320
    assert 'href="install.html"' in (site / "index.html").read_text()


@pytest.mark.nightly
def test_dark_mode_is_chosen_and_kept(tab: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.goto("training.html")
    light = tab.evaluate(background)
    tab.locator(".content .theme-toggle").first.click()
    assert (dark := tab.evaluate(background)) != light
    tab.goto("data.html")
    assert tab.evaluate(background) == dark


@pytest.mark.nightly
def test_the_api_shows_every_public_name_and_no_private_one(site: Path) -> None:
    shown = {name for page in site.glob("api/*.html") for name in re.findall(r'id="(rlcore[\w.]*)"', page.read_text())}
    lines = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8").splitlines()
    defined = {line.split(":")[0] for line in lines if re.match(r"rlcore[\w.]*: (class)?\(", line)}
    assert len(defined) > 100
    assert {name for name in defined if name.rpartition(".")[2][0] != "_"} <= shown
    assert not [name for name in shown if re.search(r"\._(?!_)", name)]


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "pages"
    written.mkdir()
    (written / "index.md").write_text("# A\n\n[gone](gone.md), [here](#b), [nowhere](#nowhere)\n\n## B\n")
    assert make_site.render(written, tmp_path / "site") == 1
    warnings = capsys.readouterr().err
    assert "gone.md" in warnings
    assert "nowhere" in warnings
    assert "'b'" not in warnings


def test_links_to_source_files_lead_to_pages_with_the_source(tmp_path: Path) -> None:
    staging.write(tmp_path)
    assert "](source/rlcore/training/api.py.md)" in (tmp_path / "how-a-run-works.md").read_text(encoding="utf-8")
    assert "def train(" in (tmp_path / "source/rlcore/training/api.py.md").read_text(encoding="utf-8")
    assert "](install.md#packages)" in (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "](packages/rlcore_ppo.md)" in (tmp_path / "install.md").read_text(encoding="utf-8")
    assert "](../index.md" not in (tmp_path / "contents.md").read_text(encoding="utf-8")


def test_every_page_of_the_docs_has_one_place_in_the_navigation() -> None:
    listed = [name for names in navigation.sections().values() for name in names]
    assert len(listed) == len(set(listed))
    top = {docname(page) for page in pages() if page.parent.name in {"", "docs", "guides"}}
    assert top <= set(listed)


def test_markdown_of_docstrings_becomes_restructured_text() -> None:
    lines = ["Return |x| of *all* `values`, as `a: b`.", "", "    f(*x)", "", "    g(x)", ""]
    lines += ["Args:", "    x: see **y_.", ""]
    translate(None, "function", "f", None, None, lines)
    assert lines[0] == r"Return \|x\| of *all* `values`, as ``a: b``."
    assert lines[2:6] == [".. code-block:: python", "", "    f(*x)", ""]
    assert lines[6] == "    g(x)"
    assert lines[-2] == r"    x: see \*\*y\_."
