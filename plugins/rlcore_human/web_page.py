"""The HTTP interface of a board: one page, and requests that are refused without the token of the link."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlcore.errors import DataError
from rlcore_human.board import Board
from rlcore_human.judgement import Item
from rlcore_human.markdown_text import render_markdown

LONGEST_NAME = 80
LARGEST_REQUEST = 100_000
LONGEST_JUDGEMENT_S = 10_000_000


def build_app(board: Board, token: str, *, question: str = "") -> Starlette:
    """Return the application.

    Args:
        board: gives items and keeps judgements.
        token: every request but that of the page itself carries it as `Authorization: Bearer`.
        question: instructions that the page shows.
    """

    async def next_item(given: dict[str, Any]) -> dict[str, Any]:
        who = _name(given)
        item = board.take(who, _text(given, "tab"))
        waiting = board.num_waiting(who)
        return {
            "item": None if item is None else _shown(item),
            "question": question,
            "waiting": waiting,
            **board.counts,
        }

    async def judge(given: dict[str, Any]) -> dict[str, Any]:
        seconds, step = given.get("seconds"), given.get("step")
        outcome = board.judge(
            _text(given, "id"), _text(given, "key"), given.get("value"), who=_name(given), tab=_text(given, "tab"),
            seconds=seconds if isinstance(seconds, (int, float)) and 0 <= seconds < LONGEST_JUDGEMENT_S else 0.0,
            step=step if type(step) is int else None,
        )  # fmt: skip
        return {"outcome": outcome}

    async def take_back(given: dict[str, Any]) -> dict[str, Any]:
        item = board.take_back(_text(given, "id"), who=_name(given), tab=_text(given, "tab"))
        return {"item": None if item is None else _shown(item), **board.counts}

    async def renew(given: dict[str, Any]) -> dict[str, Any]:
        board.renew(_text(given, "tab"))
        return {}

    async def leave(given: dict[str, Any]) -> dict[str, Any]:
        board.leave(_text(given, "tab"))
        return {}

    actions = {"next": next_item, "judge": judge, "take_back": take_back, "renew": renew, "leave": leave}
    routes = [Route(f"/api/{name}", _guarded(action, token), methods=["POST"]) for name, action in actions.items()]
    return Starlette(routes=[Route("/", _page_route()), *routes])


def _page_route() -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of the page, whose policy allows its own script and style, and nothing from elsewhere."""
    parts = {kind: (files(__package__) / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")}
    html = parts["html"].replace("/*style*/", parts["css"]).replace("/*script*/", parts["js"])
    script, style = _source_hash(parts["js"]), _source_hash(parts["css"])
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }

    async def page(_request: Request) -> Response:
        return Response(html, media_type="text/html", headers=headers)

    return page


def _source_hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _guarded(
    action: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], token: str
) -> Callable[[Request], Awaitable[Response]]:
    expected = f"Bearer {token}".encode()

    async def handle(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected):
            return _reply({"error": "this link is not valid: open the one that the run has printed"}, 403)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_REQUEST:
                return _reply({"error": f"the request is longer than {LARGEST_REQUEST} bytes"}, 413)
        try:
            given = json.loads(body)
            if not isinstance(given, dict):
                raise DataError(f"the request is a {type(given).__name__}; send an object")
            return _reply(await action(given))
        except RecursionError:
            return _reply({"error": "the request is nested too deeply"}, 400)
        except ValueError as error:
            return _reply({"error": str(error)}, 400)
        except OSError as error:
            return _reply({"error": f"the judgement could not be written: {error}"}, 500)

    return handle


def _reply(content: dict[str, Any], status: int = 200) -> Response:
    """Return JSON in ASCII: completions may contain lone surrogates, which UTF-8 cannot encode."""
    body = json.dumps(content, default=str).encode()
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def _shown(item: Item) -> dict[str, Any]:
    """Return what the page shows of an item: the conversation if there is one, else the prompt."""
    turns = item.messages or [{"role": "prompt", "content": item.prompt}]
    shown = [{"role": str(turn.get("role", "")), **_forms(_content(turn.get("content", "")))} for turn in turns]
    return {
        "key": item.key, "mode": item.mode, "turns": shown, "outputs": [_forms(each) for each in item.outputs],
        "scale": item.scale, "step": item.step, "is_conversation": item.messages is not None,
    }  # fmt: skip


def _forms(text: str) -> dict[str, str | None]:
    """Return a text as it is, and as HTML if it can be rendered as Markdown."""
    return {"text": text, "html": render_markdown(text)}


def _content(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False)


def _text(given: dict[str, Any], name: str) -> str:
    text = given.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME:
        raise DataError(f"{name} = {text!r:.100}: must be a text of 1 to {LONGEST_NAME} characters")
    return text


def _name(given: dict[str, Any]) -> str:
    who = _text(given, "who").strip()
    if not who or not who.isprintable():
        raise DataError(f"who = {who!r}: must be a name of printable characters")
    return who
