"""The HTTP interface of a board: one page, and requests that are refused without the token of the link.

Also in this file: serve an application in a thread of this process; markdown, with code and formulas, as HTML that
runs nothing and loads nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import html
import json
import socket
import threading
import time
import unicodedata
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree as ET

import nh3
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlcore.errors import ConfigError, DataError
from rlcore_rewards.human.board import Board
from rlcore_rewards.human.judgement import Item

LONGEST = 50_000
"""Characters of the longest text that is rendered."""
SHOWN_AS_THEY_ARE = frozenset("\n\t\u200c\u200d")
"""Line breaks, tabs, and the joiners that letters and emoji need."""
HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co"})
"""Unicode categories of characters that could deceive: controls, text directions, lone surrogates, private use."""
TEXT_TAGS = frozenset({
    "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
})  # fmt: skip
FORMULA_TAGS = frozenset({
    "math", "menclose", "merror", "mfenced", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mprescripts",
    "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr",
    "munder", "munderover", "none", "semantics",
})  # fmt: skip
OPERATORS = frozenset("\u2061\u2062\u2063\u2064")
"""Invisible operators of formulas, such as that between a function and its argument."""
ATTRIBUTES = {
    "math": {"display"}, "mi": {"mathvariant"}, "mo": {"stretchy", "fence", "separator", "movablelimits", "form"},
    "mtable": {"columnalign"}, "mfrac": {"linethickness"}, "ol": {"start"},
}  # fmt: skip


def render_markdown(text: str) -> str | None:
    r"""Return a text as HTML of the tags above; None if it is too long.

    HTML in the text is shown as text. Links and images stay as they were written, so that nothing can be loaded and no
    link shows another address than its own. Formulas are TeX between `$`, `$$`, `\(` and `\)`, or `\[` and
    `\]`, and become MathML; one that cannot be read, or would hide a part of itself, is shown as its source.
    """
    if len(text) > LONGEST:
        return None
    return nh3.clean(
        _parser().render(_without_hidden(text)), tags={*TEXT_TAGS, *FORMULA_TAGS}, attributes=ATTRIBUTES,
        link_rel=None,
    )  # fmt: skip


def _without_hidden(text: str) -> str:
    """Return a text with its invisible characters as their code points."""
    return "".join(f"\\u{ord(each):04x}" if _is_hidden(each) else each for each in text)


def _is_hidden(character: str) -> bool:
    return character not in SHOWN_AS_THEY_ARE and unicodedata.category(character) in HIDDEN


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.texmath import texmath_plugin

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.disable(["link", "image", "autolink", "reference", "entity"])
    parser.add_render_rule("fence", _fence)
    parser.use(texmath_plugin, delimiters="brackets")  # \(...\) and \[...\], shown by the renderer of the next one
    return parser.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, renderer=_formula)


def _fence(_renderer: object, tokens: Any, index: int, _options: object, _env: object) -> str:
    """Return fenced code after the words of its first line, such as its language."""
    info = html.escape(tokens[index].info.strip())
    return f"{f'<p><em>{info}</em></p>' if info else ''}<pre><code>{html.escape(tokens[index].content)}</code></pre>\n"


def _formula(tex: str, options: dict[str, object]) -> str:
    """Return a formula as MathML, or its source if it cannot be read or would hide or run something."""
    from latex2mathml.converter import convert

    display = "block" if options.get("display_mode") else "inline"
    try:
        shown = str(convert(tex, display=display))
        elements = list(ET.fromstring(shown).iter())  # noqa: S314  written by the library, without a DOCTYPE
    except Exception:  # noqa: BLE001  the library raises errors of many types for TeX that it cannot read
        elements = []
    names = {str(each.tag).rpartition("}")[2] for each in elements}
    has_link = any("href" in each.attrib for each in elements)
    texts = set("".join(each.text or "" for each in elements)) - OPERATORS
    if elements and names <= FORMULA_TAGS and not has_link and not any(map(_is_hidden, texts)):
        return shown
    opening, closing = (r"\[", r"\]") if display == "block" else (r"\(", r"\)")
    return f"<code>{html.escape(opening + tex + closing)}</code>"


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

    async def next_item(given: dict[str, object]) -> dict[str, object]:
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

    async def take_back(given: dict[str, object]) -> dict[str, object]:
        item = board.take_back(_text(given, "id"), who=_name(given), tab=_text(given, "tab"))
        return {"item": None if item is None else _shown(item), **board.counts}

    async def renew(given: dict[str, object]) -> dict[str, object]:
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


def _shown(item: Item) -> dict[str, object]:
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


def _content(content: object) -> str:
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


START_S = 10.0


class PageServer:
    """A server that runs until `close`.

    Args:
        app: an ASGI application.
        host: address to listen at.
        port: port to listen at; 0: a free one.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, app: Any, *, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"human.host = {host!r}, human.port = {port}: the page cannot be served there: {error}; choose another "
                "port, or 0 for a free one"
            ) from error
        name = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104  compared, not bound
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self._socket.getsockname()[1]}/"
        options = uvicorn.Config(
            app, log_config=None, log_level="error", access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(options)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="rlcore-rewards", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving; open requests are answered."""
        self._server.should_exit = True
        self._thread.join(START_S)
        self._socket.close()
