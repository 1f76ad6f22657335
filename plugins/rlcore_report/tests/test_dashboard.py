"""Laws of the dashboard's server and list: what it answers, whom it refuses, and what a page may hold."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from report_runs import HOSTILE, make_run, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main
from rlcore_report.html_page import shell_page
from rlcore_report.run_list import MAX_RUNS, ReportServer, RunList


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportServer]:
    """A dashboard of two runs under a root, beside a secret that no request may reach."""
    tmp_path = tmp_path_factory.mktemp("served")
    for name in ("a", "sweep/b"):
        make_run(tmp_path / "runs" / name, steps=6)
    (tmp_path / "secret").write_text("secret")
    make_run(tmp_path / "outside", steps=6)
    with ReportServer([], roots=[tmp_path / "runs"]) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ReportServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_list_has_the_runs_of_a_root_and_of_the_folders_in_it(served: ReportServer) -> None:
    status, body, _ = ask(served, "/runs.json")
    found = json.loads(body)
    assert status == 200
    assert {run["key"] for run in found["runs"]} == {"a", "sweep/b"}
    (run,) = (run for run in found["runs"] if run["key"] == "a")
    assert (run["trainer"], run["model"], run["step"], run["total"]) == ("ppo", "tiny", 6, 6)
    assert (run["metric"], run["last"], run["best"]) == ("eval/reward/mean", 6.1, 6.1)
    again = json.loads(ask(served, f"/runs.json?stamp={found['stamp']}")[1])
    assert "runs" not in again or again["runs"] != found["runs"]  # unless a verdict has come meanwhile


def test_a_run_is_answered_by_its_key_and_not_again_until_it_writes(served: ReportServer) -> None:
    data = json.loads(ask(served, "/data.json?run=sweep/b")[1])
    assert data["runs"][0]["name"] == "b"
    asked = f"/data.json?run=sweep/b&stamp={quote(data['stamp'])}"
    assert json.loads(ask(served, asked)[1])["same"] is True
    folder = served.list.folder("sweep/b")
    assert folder is not None
    with RunDir(folder).metrics.open("a") as file:
        file.write('{"step": 7, "reward/mean": 1.0}\n')
    assert json.loads(ask(served, asked)[1])["runs"][0]["step"] == 7


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_run_that_is_deleted_while_it_is_shown_is_named_and_others_go_on(
    served: ReportServer, *, is_listed: bool
) -> None:
    known = served.list.folder("a")
    assert known is not None
    folder = make_run(known.with_name("doomed"), steps=6)
    data = json.loads(ask(served, "/data.json?run=doomed&run=sweep/b")[1])
    assert [run["name"] for run in data["runs"]] == ["doomed", "b"]
    shutil.rmtree(folder)
    if is_listed:
        assert {run["key"] for run in json.loads(ask(served, "/runs.json")[1])["runs"]} == {"a", "sweep/b"}
    data = json.loads(ask(served, f"/data.json?run=doomed&run=sweep/b&stamp={quote(data['stamp'])}")[1])
    assert [run["name"] for run in data["runs"]] == ["b"]
    gone = [{"name": "doomed", "problem": f"its folder {folder} has been deleted or moved"}]
    assert data["unreadable"] == gone
    alone = json.loads(ask(served, "/data.json?run=doomed")[1])
    assert (alone["runs"], alone["unreadable"]) == ([], gone)


@pytest.mark.parametrize(
    "path",
    [
        "/../secret", "/..%2fsecret", "/%2e%2e/secret", "//etc/passwd", "/data.json?run=../outside",
        "/data.json?run=..%2foutside", "/data.json?run=%2e%2e%2foutside", "/data.json?run=sweep/../../outside",
        "/data.json?run=a/../../outside", "/data.json?run=/etc", "/data.json?run=a%00", "/data.json?run=.",
        "/data.json?run=", "/data.json", "/data.json?run=a&run=../outside", "/metrics.jsonl", "/runs/a/config.yaml",
        "/a", "/page/app.js", "/data.json/../secret", f"/data.json?{'run=a&' * (MAX_RUNS + 9)}",
        f"/data.json?{'run=a&' * (MAX_RUNS + 1)}", "/data.json?run=a%2f", "/data.json?run=A\\..\\..\\outside",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_list(served: ReportServer, path: str) -> None:
    status, body, _ = ask(served, path)
    assert status in (400, 404)
    assert b"secret" not in body
    assert b"reward" not in body


def test_half_an_address_is_refused(served: ReportServer) -> None:
    assert ask(served, "http://[::1", Host=f"127.0.0.1:{served.server_port}")[0] == 400


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_RUNS + 1, MAX_RUNS + 9])
def test_more_runs_than_a_page_shows_are_refused_with_the_limit(served: ReportServer, count: int) -> None:
    assert ask(served, f"/data.json?{'run=a&' * MAX_RUNS}stamp=")[0] == 200
    status, body, _ = ask(served, f"/data.json?{'run=a&' * count}stamp=")
    assert status == 400
    assert b"a page shows at most 60 runs: select fewer" in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1", "localhost.", "0.0.0.0", ""]
)
@pytest.mark.parametrize("path", ["/", "/runs.json", "/data.json?run=a"])
def test_a_page_of_another_site_cannot_read_by_way_of_a_name_of_this_machine(
    served: ReportServer, path: str, host: str
) -> None:
    assert ask(served, path, Host=host)[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_from_a_page_of_another_site_is_refused(served: ReportServer, site: str) -> None:
    assert ask(served, "/runs.json", Sec_Fetch_Site=site)[0] == 403
    assert ask(served, "/data.json?run=a", Sec_Fetch_Site=site)[0] == 403
    assert ask(served, "/runs.json", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_server_changes_nothing(served: ReportServer, method: str) -> None:
    assert ask(served, "/data.json?run=a", method)[0] == 501


def test_answers_forbid_frames_guessing_and_other_origins(served: ReportServer) -> None:
    for path in ("/", "/runs.json", "/data.json?run=a"):
        headers = ask(served, path)[2]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src 'sha256-" in policy
        assert not re.search(r"script-src[^;]*unsafe", policy)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_a_browser_that_leaves_is_no_error_on_the_terminal(served: ReportServer, capsys: Any) -> None:
    for error, is_printed in ((BrokenPipeError(), False), (ConnectionResetError(), False), (KeyError("k"), True)):
        try:
            raise error
        except type(error):
            served.handle_error(None, ("127.0.0.1", 1))
        assert bool(capsys.readouterr().err) is is_printed


def test_names_that_attack_the_page_are_data(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = make_run(root / "a<b>&'\"", steps=4)
    config = RunDir(run).config.read_text().replace("path: tiny", "path: '</script><script>window.ran=1</script>'")
    RunDir(run).config.write_text(config)
    with ReportServer([], roots=[root]) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for path in ("/", "/runs.json", f"/data.json?run={quote(run.name)}"):
            status, body, _ = ask(server, path)
            assert status == 200
            assert b"</script><script>window" not in body
            assert b"<b>&" not in body
        server.shutdown()


def test_the_shell_of_a_dashboard_names_its_server_alone() -> None:
    page = shell_page({"live": True, "opened": []})
    assert "connect-src 'self'" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_the_list_follows_runs_that_come_change_and_go(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=4)
    runs = RunList([tmp_path])
    assert [row["step"] for row in runs.rows()] == [4]
    b = make_run(tmp_path / "b", steps=9)
    assert {row["key"]: row["step"] for row in runs.rows()} == {"a": 4, "b": 9}
    with RunDir(b).metrics.open("a") as file:
        file.write('{"step": 10, "eval/reward/mean": 7.5}\n{"step": 11, "eval/reward/mean": 9')
    (row,) = (row for row in runs.rows() if row["key"] == "b")
    assert (row["step"], row["last"], row["best"]) == (10, 7.5, 9.1)
    shutil.rmtree(b)
    assert [row["key"] for row in runs.rows()] == ["a"]
    runs.close()


def test_verdicts_come_after_the_list(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    runs = RunList([tmp_path])
    (first,) = runs.rows()
    assert first["verdict"]["level"] == "pending"
    until = time.monotonic() + 300
    while (row := runs.rows()[0])["verdict"]["level"] == "pending" and time.monotonic() < until:
        time.sleep(0.05)
    assert row["verdict"]["level"] == "bad"
    assert row["verdict"]["name"].startswith("Entropy collapsed")
    runs.close()


def test_a_metric_in_a_text_is_no_value(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=4)
    write_lines(RunDir(run).metrics, [
        {"step": 3, "reward/mean": -1.5e-3}, {"step": 4, 'x"reward/mean': 9.0, '"reward/mean": 8, "': 7.0},
    ])  # fmt: skip
    runs = RunList([tmp_path])
    (row,) = runs.rows()
    assert (row["metric"], row["last"], row["best"]) == ("reward/mean", -1.5e-3, -1.5e-3)
    runs.close()


def test_damaged_runs_are_listed_all_the_same(tmp_path: Path) -> None:
    for name, content in {"yaml": "# rlcore run\nrun: [", "short": "# rlcore run"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(content)
    (tmp_path / "other").mkdir()
    (tmp_path / "yaml" / "metrics.jsonl").write_bytes(b'{"step": 1, "loss/total": 2.5}\n\xff\xfe nonsense\n{"step"')
    runs = RunList([tmp_path, tmp_path / "missing"])
    rows = {row["key"]: row for row in runs.rows()}
    assert set(rows) == {"yaml", "short"}
    assert (rows["yaml"]["trainer"], rows["yaml"]["last"]) == ("unknown", 2.5)
    runs.close()


def test_the_command_serves_a_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    make_run(tmp_path / "runs" / "a", steps=4)
    seen: list[str] = []

    def once(server: ReportServer) -> None:
        thread = Thread(target=ReportServer.handle_request, args=(server,))
        thread.start()
        with urllib.request.urlopen(server.url + "runs.json", timeout=300) as answered:
            seen.extend(run["key"] for run in json.load(answered)["runs"])
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(ReportServer, "serve_forever", once)
    assert main(["report", str(tmp_path / "runs"), "--serve"]) == 0
    assert seen == ["a"]
    assert "Ctrl-C ends it" in capsys.readouterr().out
    for name in (str(tmp_path / "nothing"), ""):
        assert main(["report", name, "--serve"]) == 1
    assert main(["report", str(tmp_path / "runs"), "--serve", "--port", "99999"]) == 1
    assert "--port 99999" in capsys.readouterr().err


def test_options_that_would_be_ignored_are_refused(tmp_path: Path, capsys: Any) -> None:
    run = make_run(tmp_path / "a", steps=4)
    for options, word in {("--serve", "--out", "x.html"): "--out x.html", ("--port", "80"): "--port 80"}.items():
        assert main(["report", str(run), *options]) == 1
        assert word in capsys.readouterr().err
    assert not RunDir(run).report.exists()


def test_a_port_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = str(make_run(tmp_path / "a", steps=4))
    with ReportServer([]) as taken:
        assert main(["report", run, "--serve", "--port", str(taken.server_port)]) == 1
        assert f"--port {taken.server_port}" in capsys.readouterr().err

    def forbidden(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socketserver.TCPServer.server_bind", forbidden)
    assert main(["report", run, "--serve", "--port", "80"]) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_the_texts_of_hostile_runs_reach_the_page_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "hostile", steps=4, data={"system_prompt": HOSTILE})
    transcript = [{"role": HOSTILE, "content": HOSTILE, "reward": 1.0}, {"role": "tool", "content": "5"}]
    write_lines(RunDir(run).rollouts, [{"step": 1, "prompt": HOSTILE, "output": HOSTILE, "transcript": transcript}])
    with ReportServer([run]) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        body = ask(server, "/data.json?run=hostile")[1]
        server.shutdown()
    assert not set(b"<>") & set(body)
    (row,) = json.loads(body)["samples"][0]["rollouts"]["rows"]
    assert row["turns"][1] == ["tool", "5"]
    assert row["turns"][0][0].endswith("(+1)")
    assert "\\u202e" in row["output"]
