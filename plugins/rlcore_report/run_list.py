"""The list of runs of a dashboard: what each is, how far it is, and what its reward did, read in about a millisecond.

A list must be there at once, so the files of a run are searched, not parsed. Verdicts, which need every metric, are
made by a thread meanwhile, the newest runs first, and again when a run has written something.

Also in this file: what the list of a dashboard shows of a run: the figures of its page, and the same ones found
without parsing; a dashboard of runs: served on this machine only, and read anew when a run has written something.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import numpy as np

from rlcore.checkpoints.run_folder import MARK, RunDir, is_locked
from rlcore.components import describe_error
from rlcore.safe_text import visible
from rlcore_report.answer import Change, change_in, change_of, in_one_sentence, judged, main_metrics
from rlcore_report.html_page import policy_of, readable_data, shell_page, to_script
from rlcore_report.metric_groups import Series
from rlcore_report.page_data import rounded
from rlcore_report.run_files import head_of, list_stamp, open_regular, page_stamp
from rlcore_report.run_record import RunRecord, planned_steps, read_run, state_of

SEARCHED = 8_000_000
"""Bytes of metrics.jsonl that are searched; of a longer one, its beginning and its end."""


@attrs.frozen
class ListedRun:
    """What the list shows of a run: of the metric of its card the last and the best value, and its options."""

    name: str
    trainer: str
    model: str
    total: int | None
    step: int
    metric: str
    last: float | None
    best: float | None
    step_s: float
    options: Mapping[str, str]


def listed(run: RunRecord) -> ListedRun:
    """Return what the list shows of a run whose files are parsed, as its page shows it."""
    change = change_in(run.metrics, run.headline)
    trainer, model = run.option("trainer", "name"), run.option("model", "path")
    return _row(run.folder, change, str(trainer or ""), str(model or ""), run.total_steps, run.last_step, run.step_s)


def search(folder: Path) -> ListedRun:
    """Return what the list shows of a run without parsing its files."""
    run = RunDir(folder)
    config = head_of(run.config, 200_000).decode("utf-8", "replace")
    content = _searched(run.metrics)
    headline = (re.search(r"^# headline (.+)$", config, re.MULTILINE) or [""] * 2)[1].split()
    found = dict[str, Series]()
    for name in main_metrics(headline):
        values = _values(content, name)
        if values:
            found[name] = Series(np.arange(len(values)), np.array(values))
        if len(values) > 1:
            break
    last = re.compile(rb'\{"step": (\d{1,15})[,}]').match(content, content.rfind(b'\n{"step": ') + 1)
    step, steps, epochs = int(last[1]) if last else 0, _option(config, "run", "steps"), _option(config, "run", "epochs")
    passes = _values(content, "progress/epoch") if re.fullmatch(r"\d{1,15}(\.\d+)?", epochs) else []
    limit = int(steps) if steps.isdecimal() and len(steps) < 16 else None
    planned = planned_steps(limit, float(epochs) if passes else None, passes, step)
    trainer, model = _option(config, "trainer", "name"), _option(config, "model", "path")
    seconds = _values(content, "time/step_s")
    step_s = float(np.median(seconds)) if seconds else 0.0
    return _row(folder, change_in(found, headline), trainer, model, planned, step, step_s)


def _row(
    folder: Path, change: Change | None, trainer: str, model: str, total: int | None, step: int, step_s: float
) -> ListedRun:
    return ListedRun(
        name=visible(folder.resolve().name),
        trainer=visible(trainer or "unknown"),
        model=visible(model or "unknown"),
        total=total,
        step=step,
        metric=visible(change.metric) if change else "",
        last=rounded(change.after) if change else None,
        best=rounded(change.best) if change else None,
        step_s=step_s,
        options=_options(head_of(folder / "config.yaml", 200_000).decode("utf-8", "replace")),
    )


def _searched(file: Path) -> bytes:
    """Return the complete lines of a file, of a long one those at its beginning and its end."""
    with suppress(OSError), open_regular(file) as lines:
        size = os.fstat(lines.fileno()).st_size
        if size <= SEARCHED:
            content = lines.read()
        else:
            begin = lines.read(SEARCHED // 2)
            lines.seek(size - SEARCHED // 2)
            content = begin[: begin.rfind(b"\n") + 1] + lines.read().partition(b"\n")[2]
        return content[: content.rfind(b"\n") + 1]
    return b""


def _values(content: bytes, name: str) -> list[float]:
    """Return the values of a metric. Within a text of JSON, a quote beside its name would have a backslash."""
    pattern = re.compile(b'"' + re.escape(name.encode()) + rb'": (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[,}]')
    return [
        float(found[1]) for found in pattern.finditer(content) if content[found.start() - 1 : found.start()] != b"\\"
    ]


def _option(config: str, section: str, name: str) -> str:
    """Return a plain option of a configuration as every run writes it; empty if it is missing or null."""
    found = re.search(rf"^{section}:\n(?:  .*\n)*?  {name}: (.+)$", config, re.MULTILINE)
    text = found[1].strip() if found else ""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return "" if text in ("null", "~") else text


_LINE = re.compile(r"( *)([^\s:#'\"-][^:]*):(?: (.+))?$")


def _options(config: str) -> dict[str, str]:
    """Return the plain options of a configuration as every run writes it, by their dotted paths."""
    found, path = dict[str, str](), list[str]()
    for line in config.splitlines():
        if parts := _LINE.match(line):
            path[len(parts[1]) // 2 :] = [parts[2]]
            if parts[3]:
                text = parts[3].strip()
                is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
                found[visible(".".join(path))] = visible(text[1:-1] if is_quoted else text)[:LONGEST_OPTION]
    return found


LONGEST_OPTION = 60
"""Characters of an option that the list shows."""
DEPTH = 3
"""Folders below a root in which runs are looked for, such as those of a sweep."""
HEAD_START_S = 1.0
"""Time in which a browser draws the list for the first time, before verdicts are made."""
PENDING = {"level": "pending", "name": "", "sentence": "The verdict is being made."}


@attrs.frozen
class _Judged:
    """What the thread that makes verdicts has found of a run: its figures as its own page has them, and a verdict."""

    stamp: str | None
    run: ListedRun | None
    verdict: Mapping[str, str]


class RunList:
    """The runs in some folders, by their keys.

    A key is the path of a run below its root. Whatever a request names is looked up among the keys, and is never part
    of a path.

    Args:
        roots: folders that contain runs.
        runs: folders of runs.
    """

    def __init__(self, roots: Sequence[Path], runs: Sequence[Path] = ()) -> None:
        self._roots, self._runs = tuple(roots), tuple(runs)
        self._summaries: dict[str, tuple[str, ListedRun]] = {}
        self._judged: dict[str, _Judged] = {}
        self._waiting: dict[str, Path] = {}
        self._lock, self._wake = Lock(), Condition()
        self._folders: dict[str, Path] = {}  # also those of runs that have been deleted since
        self._is_closed = False
        self._thread: Thread | None = None

    def folders(self) -> dict[str, Path]:
        """Return the folders of the runs by their keys, as they are now on the disk."""
        found: dict[str, Path] = {}
        for root in self._roots:
            for folder in _runs_below(root, DEPTH):
                found.setdefault(folder.relative_to(root).as_posix(), folder)
        for folder in self._runs:
            name = folder.resolve().name
            found[str(folder) if found.get(name, folder) != folder else name] = folder
        self._folders.update(found)
        return found

    def folder(self, key: str) -> Path | None:
        """Return the folder of a run, also if it has been deleted since; None if there was none of this key."""
        return self._folders.get(key) or self.folders().get(key)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, most recently changed first; a verdict that is not made yet is `pending`."""
        rows, waiting = [], {}
        with self._lock:
            for key, folder in self.folders().items():
                stamp, changed = list_stamp(folder)
                judged_run = self._judged.get(key) or _Judged(None, None, PENDING)
                if judged_run.stamp != stamp:
                    waiting[key] = folder
                summary = self._summary(key, folder, stamp)
                state, _ = state_of(folder, is_running=is_locked(folder), step_s=summary["step_s"])
                rows.append({
                    "key": key, **summary, "verdict": dict(judged_run.verdict), "state": visible(state),
                    "changed": changed,
                })  # fmt: skip
        rows.sort(key=lambda row: -row["changed"])
        self._judge_later({row["key"]: waiting[row["key"]] for row in rows if row["key"] in waiting})
        return rows

    @staticmethod
    def common(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Return the options that are equal in all rows, and leave to each row its others."""
        if not rows:
            return {}
        alike = set.intersection(*({*row["options"].items()} for row in rows))
        for row in rows:
            row["options"] = {path: value for path, value in row["options"].items() if (path, value) not in alike}
        return dict(alike)

    def close(self) -> None:
        """End the thread that makes verdicts."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout=1.0)  # a very long run may take longer; the thread is a daemon

    def _summary(self, key: str, folder: Path, stamp: str) -> dict[str, Any]:
        judged_run = self._judged.get(key)
        if judged_run is not None and judged_run.run is not None and judged_run.stamp == stamp:
            self._summaries[key] = (stamp, judged_run.run)
        elif self._summaries.get(key, (None,))[0] != stamp:
            self._summaries[key] = (stamp, search(folder))
        return attrs.asdict(self._summaries[key][1])

    def _judge_later(self, waiting: dict[str, Path]) -> None:
        with self._wake:
            self._waiting = waiting
            if waiting and self._thread is None and not self._is_closed:
                self._thread = Thread(target=self._judge, name="verdicts", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _judge(self) -> None:
        time.sleep(HEAD_START_S)
        while True:
            with self._wake:
                while not self._waiting and not self._is_closed:
                    self._wake.wait()
                if self._is_closed:
                    return
                key = next(iter(self._waiting))
                folder = self._waiting.pop(key)
            found = _judge(folder)
            with self._lock:
                self._judged[key] = found
            time.sleep(0.001)  # requests come first


def _judge(folder: Path) -> _Judged:
    """Read a run and make its verdict; if that fails, its error is the verdict, and other runs are not affected."""
    stamp, run = list_stamp(folder)[0], None
    try:
        record = read_run(folder)
        run = listed(record)
        verdict = in_one_sentence(record, judged(record), change_of(record))
    except Exception as error:  # noqa: BLE001  the files of a run may contain anything
        verdict = {
            "level": "none", "name": "unreadable", "sentence": f"The run cannot be read: {describe_error(error)}"
        }  # fmt: skip
    return _Judged(stamp, run, {name: visible(text) for name, text in verdict.items()})


def _runs_below(root: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs, without looking into them; links to folders are followed to one level."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:  # another user's, or gone
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        folder = root / entry.name
        if head_of(folder / "config.yaml", len(MARK)) == MARK.encode():
            yield folder
        elif depth > 1 and not entry.is_symlink():
            yield from _runs_below(folder, depth - 1)


ADDRESS = "127.0.0.1"
MAX_RUNS = 60
"""Runs of one page."""
KEPT = 8
"""Pages that are kept until a file of their runs changes."""


class ReportServer(ThreadingHTTPServer):
    """Serves a page at `/`, the list of runs at `/runs.json`, and the data of chosen runs at `/data.json?run=KEY`.

    Requests must name this machine as their host, so that no page of another site can read the answers by way of a
    domain that resolves to this machine.

    Args:
        folders: the runs' folders, which the page opens at first.
        roots: folders that contain runs.
        port: the port; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], *, roots: Sequence[Path] = (), port: int = 0) -> None:
        self.list = RunList(roots, folders)
        super().__init__((ADDRESS, port), _Handler)
        self._opened = list(self.list.folders()) if not roots else []
        self._lock, self._kept = Lock(), OrderedDict[tuple[str, ...], tuple[str, bytes]]()
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def server_close(self) -> None:
        """Close the socket, and end the thread that makes verdicts."""
        super().server_close()
        self.list.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a request that failed, unless a browser has left before its answer was complete."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def page(self, _asked: dict[str, list[str]]) -> bytes:
        """Return the page, which asks for the rest."""
        return shell_page({"live": True, "opened": self._opened, "most": MAX_RUNS}).encode()

    def runs(self, asked: dict[str, list[str]]) -> bytes:
        """Return the list of runs, or that it is still the one of the stamp that is asked with."""
        rows = self.list.rows()
        return _stamped({"common": dict(sorted(self.list.common(rows).items())), "runs": rows}, asked)

    def data(self, asked: dict[str, list[str]]) -> bytes | None:
        """Return the data of the runs whose keys are asked for; None if one does not exist."""
        keys = tuple(asked.get("run", ()))
        folders = [self.list.folder(key) for key in keys]
        if not keys or None in folders:
            return None
        found = [folder for folder in folders if folder is not None]
        stamp = "-".join(map(page_stamp, found))
        if stamp in asked.get("stamp", ()):
            return to_script({"stamp": stamp, "same": True}).encode()
        with self._lock:
            kept = self._kept.get(keys, ("", b""))
        if kept[0] != stamp:  # without the lock, so that a large run delays no other
            kept = (stamp, readable_data(found, stamp=stamp, keys=keys).encode())
        with self._lock:
            self._kept[keys] = kept
            self._kept.move_to_end(keys)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept[1]


def _stamped(content: dict[str, object], asked: dict[str, list[str]]) -> bytes:
    stamp = f"{hash(json.dumps(content)) & 0xFFFFFFFFFFFF:x}"
    same = stamp in asked.get("stamp", ())
    return to_script({"stamp": stamp, "now": time.time(), **({"same": True} if same else content)}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 60

    def do_GET(self) -> None:
        server = self.server
        pages: dict[str, tuple[Callable[[dict[str, list[str]]], bytes | None], str]] = {
            "/": (server.page, "text/html"),
            "/runs.json": (server.runs, "application/json"),
            "/data.json": (server.data, "application/json"),
        }
        try:
            parts = urlsplit(self.path)
        except ValueError:  # such as http://[::1, half an address
            self.send_error(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        if self.headers.get("Host") not in server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN, "the host must be this machine")
        elif parts.path != "/" and self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self.send_error(HTTPStatus.FORBIDDEN, "the page of another site may not ask")
        elif parts.path not in pages:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            make, kind = pages[parts.path]
            try:
                asked = parse_qs(parts.query, max_num_fields=MAX_RUNS + 2)
            except ValueError:
                asked = None
            if asked is None or len(asked.get("run", ())) > MAX_RUNS:
                self.send_error(HTTPStatus.BAD_REQUEST, f"a page shows at most {MAX_RUNS} runs: select fewer")
                return
            body = make(asked)
            if body is None:
                self.send_error(HTTPStatus.NOT_FOUND, "no such run")
            else:
                self._answer(body, kind)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", f"{policy_of(live=True)}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parameter's name in http.server
        """Write nothing: a page asks for newer data every few seconds."""
