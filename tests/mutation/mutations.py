"""Small changes of a Python source, each of which a test should notice."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator

import attrs

NEIGHBOURS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@attrs.frozen
class Mutation:
    """One change of a source.

    Attributes:
        line: where it begins, from 1.
        last: the last line of what is replaced.
        start: offset in bytes of what is replaced.
        end: offset of its end.
        old: what is replaced.
        new: what replaces it.
        scope: names of the enclosing classes and functions, or of the module's variable, outermost first.
    """

    line: int
    last: int
    start: int
    end: int
    old: str
    new: str
    scope: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        text = source.encode()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    """Return every mutation of a source, in the order of its lines.

    Comparisons move by one boundary or turn round, integers by one; numbers double; `and` and `or`, True and False, and
    pairs of operators change places; conditions are negated; keyword arguments and statements are dropped. Annotations,
    decorators, docstrings, imports and strings stay.
    """
    text, tree = source.encode(), ast.parse(source)
    begins = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    conditions = {id(node.test) for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.While)}
    found = []
    for node, scope in _nodes(tree, ()):
        last = node.end_lineno or node.lineno
        start, end = begins[node.lineno - 1] + node.col_offset, begins[last - 1] + (node.end_col_offset or 0)
        news = [*(_statement(node) if isinstance(node, ast.stmt) else _expression(node))]
        if id(node) in conditions and not isinstance(node, ast.Compare | ast.UnaryOp):
            news.append(f"(not ({ast.unparse(node)}))")
        old = text[start:end].decode()
        found += [Mutation(node.lineno, last, start, end, old, new, scope) for new in dict.fromkeys(news)]
    return sorted(found, key=lambda each: (each.line, each.start))


def _nodes(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.expr | ast.stmt, tuple[str, ...]]]:
    """Yield the expressions and statements whose change changes what the program does."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.pattern):
        return  # positions in f-strings are not those of the file before Python 3.12
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and not scope:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        scope = (target.id,) if isinstance(target, ast.Name) else ()
    if isinstance(node, ast.expr | ast.stmt):
        yield node, scope
    for field, value in ast.iter_fields(node):
        if field not in {"annotation", "returns", "decorator_list"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, scope)


def _statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
            yield "pass"


def _expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield _altered(node, lambda new, i=index, op=operator: new.ops.__setitem__(i, NEIGHBOURS[type(op)]()))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _altered(node, lambda new: setattr(new, "op", other))
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield _altered(node, lambda new: setattr(new, "op", OPERATORS[type(node.op)]()))
        case ast.UnaryOp(op=ast.Not()):
            yield f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() | float() as value):
            yield str(not value if isinstance(value, bool) else value * 2 or 1.0)
        case ast.Constant(value=int()):
            yield from (f"{node.value + 1}", f"({node.value - 1})")
        case ast.Call():
            for index in range(len(node.keywords)):
                yield _altered(node, lambda new, i=index: new.keywords.__delitem__(i))


def _altered(node: ast.expr, alter: Callable[[ast.AST], object]) -> str:
    new = copy.deepcopy(node)
    alter(new)
    return f"({ast.unparse(new)})"
