"""A stand-in of the Hugging Face hub: the part of its HTTP API that pushing and loading a model uses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "hf_good"
READER = "hf_reader"
"""A token that may read and not write."""


class StandIn(ThreadingHTTPServer):
    """Repositories in memory: branch → path → bytes, by repository id."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def commit_of(files: dict[str, bytes]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(files):
        digest.update(path.encode() + hashlib.sha256(files[path]).digest())
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None: ...

    def answer(self, body: Any = b"", code: int = 200, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def refused(self, *, writes: bool) -> bool:
        """Answer 401 to a wrong token, and 403 to one that may not write."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == TOKEN or (token == READER and not writes):
            return False
        code, reason = (403, "Forbidden: this token may not write") if token == READER else (401, "Invalid token")
        self.answer({"error": reason}, code)
        return True

    def do_POST(self) -> None:
        body, path = self.read(), unquote(self.path)
        self.server.requests.append(f"POST {path}")
        if self.refused(writes=True):
            return
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if repo in self.server.repos:
                self.answer({"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"}, 409)
                return
            self.server.repos[repo], self.server.private[repo] = (
                {"main": {}},
                "private" in {asked.get("visibility"), "private" if asked.get("private") else ""},
            )
            self.answer({"url": f"{self.server.url}/{repo}", "id": repo})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.answer({"transfer": "basic", "objects": [self.upload(each) for each in json.loads(body)["objects"]]})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/(.+)", path):
            repo, action, branch = found.groups()
            getattr(self, action)(self.server.repos[repo], branch, body, repo)
        else:
            self.answer({"error": f"no such path {path}"}, 404)

    def upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.server.url}/large/{asked['oid']}"}}}

    def preupload(self, branches: Any, branch: str, body: bytes, repo: str) -> None:
        files = json.loads(body)["files"]
        mode = {True: "lfs", False: "regular"}
        self.answer({"files": [
            {"path": f["path"], "uploadMode": mode[f["path"].endswith(".safetensors")], "shouldIgnore": False}
            for f in files
        ]})  # fmt: skip

    def branch(self, branches: Any, branch: str, body: bytes, repo: str) -> None:
        branches.setdefault(branch, dict(branches["main"]))
        self.answer({})

    def commit(self, branches: Any, branch: str, body: bytes, repo: str) -> None:
        files = branches[branch]
        for line in body.splitlines():
            part = json.loads(line)
            value = part["value"]
            if part["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif part["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        oid = commit_of(files)
        self.answer({"commitUrl": f"{self.server.url}/{repo}/commit/{oid}", "commitOid": oid, "hookOutput": ""})

    def do_PUT(self) -> None:
        body = self.read()
        self.server.requests.append(f"PUT {self.path}")
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.large[oid] = body
        self.answer()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path).partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        if path == "/api/whoami-v2":
            if not self.refused(writes=False):
                self.answer({"name": "me", "type": "user", "orgs": [], "auth": {"type": "access_token"}})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
            self.describe(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        else:
            self.answer({"error": "Not Found"}, 404)

    def branch_of(self, repo: str, revision: str) -> dict[str, bytes] | None:
        branches = self.server.repos.get(repo, {})
        return branches.get(revision) or next((f for f in branches.values() if commit_of(f) == revision), None)

    def describe(self, repo: str, what: str | None, revision: str | None) -> None:
        files = self.branch_of(repo, (revision or "main").partition("/")[0])
        if files is None:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif what == "tree":
            self.answer([{"type": "file", "path": p, "size": len(b), "oid": "0" * 40} for p, b in files.items()])
        else:
            self.answer({
                "id": repo, "modelId": repo, "sha": commit_of(files), "private": False, "downloads": 0, "likes": 0,
                "tags": [], "siblings": [{"rfilename": path} for path in files],
            })  # fmt: skip

    def resolve(self, repo: str, revision: str, path: str) -> None:
        files = self.branch_of(repo, revision)
        if files is None:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif path not in files:
            self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit_of(files))
        else:
            body = files[path]
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            self.answer(body, ETag=etag, X_Repo_Commit=commit_of(files), X_Linked_Size=str(len(body)))
