"""The candidates of a kernel at the dimensions of a call."""

import ast
import itertools
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import MANIFEST, Candidate, Dimensions, Kernel, Value

# In restrictions: the CPU cores that this process may use.
CORES = "cores"

_ARITHMETIC: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.Compare),
    *(ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp, ast.And, ast.Or),
    *_ARITHMETIC,
    *_COMPARISONS,
)
_CURE = (
    "A restriction compares integers and names of parameters, dimensions and cores, with"
    " + - * // % and, or, not; such as: block <= context"
)


@dataclass(frozen=True)
class Space:
    """What can be tried at a call's dimensions.

    Attributes:
        candidates: Those that meet every restriction: the default first, then in the order in
            which the manifest names the values, the last parameter changing fastest.
        restricted: How many others there are.
    """

    candidates: tuple[Candidate, ...]
    restricted: int


def make_space(kernel: Kernel, dimensions: Dimensions) -> Space:
    """Returns the candidates of a kernel for a call on this machine.

    Args:
        kernel: The kernel.
        dimensions: Of the call: shape and size.

    Raises:
        LeverbenchError: A restriction is wrong, or the default does not meet one.
    """
    restrictions = parse_restrictions(kernel)
    fixed = {CORES: len(os.sched_getaffinity(0)), **dimensions}
    products = [
        dict(zip(kernel.parameters, values, strict=True))
        for values in itertools.product(*kernel.parameters.values())
    ]
    default = dict(kernel.default)
    for place, restriction in enumerate(restrictions):
        if not _holds(kernel, place, restriction, {**fixed, **default}):
            raise _mistake(
                kernel,
                place,
                f"the default does not meet it at {_shown(fixed)}",
                "Choose a default that can be used at each of the kernel's dimensions.",
            )
    kept = [
        candidate
        for candidate in products
        if all(
            _holds(kernel, place, restriction, {**fixed, **candidate})
            for place, restriction in enumerate(restrictions)
        )
    ]
    others = [candidate for candidate in kept if candidate != default]
    return Space((default, *others), len(products) - len(kept))


# Their values are found by recursion.
_MOST_NODES = 300


def parse_restrictions(kernel: Kernel) -> list[ast.expr]:
    """Returns a kernel's restrictions as syntax trees in which every name is known.

    Raises:
        LeverbenchError: A restriction is wrong.
    """
    sizes = {kernel.size} if kernel.size is not None else set()
    known = {*kernel.parameters, *kernel.shapes[0], *sizes, CORES}
    parsed = []
    for place, text in enumerate(kernel.restrictions):
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise _mistake(kernel, place, "it is no expression", _CURE) from None
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            raise _mistake(kernel, place, "it is too long", "Write several shorter ones.")
        for node in ast.walk(tree):
            if not _is_allowed(node):
                raise _mistake(kernel, place, f"{ast.unparse(node)} is not allowed", _CURE)
            if isinstance(node, ast.Name) and node.id not in known:
                raise _mistake(
                    kernel,
                    place,
                    f"nothing is called {node.id}",
                    f"There are: {', '.join(sorted(known))}.",
                )
        parsed.append(tree.body)
    return parsed


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, str)  # a text is a dtype's name
    operators = [
        child
        for child in ast.iter_child_nodes(node)
        if isinstance(child, (ast.operator, ast.unaryop, ast.cmpop))
    ]
    return all(isinstance(each, _ALLOWED) for each in (node, *operators))


def _holds(kernel: Kernel, place: int, restriction: ast.expr, names: Mapping[str, Value]) -> bool:
    try:
        return bool(_value(restriction, names))
    except (TypeError, ZeroDivisionError) as error:
        raise _mistake(
            kernel,
            place,
            f"it cannot be told at {_shown(names)} ({error})",
            "Texts can only be compared with texts, and nothing is divided by 0.",
        ) from None


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    """Returns the value of what `parse_restrictions` let through."""
    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(operand=operand):
            return -_integer(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_integer(left, names), _integer(right, names))
        case ast.BoolOp(op=op, values=values):
            decide = all if isinstance(op, ast.And) else any
            return decide(_value(value, names) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            found = [_value(each, names) for each in (left, *comparators)]
            return all(
                _COMPARISONS[type(op)](*pair)
                for op, pair in zip(ops, itertools.pairwise(found), strict=True)
            )
    raise AssertionError(ast.dump(node))


def _integer(node: ast.expr, names: Mapping[str, Value]) -> int:
    value = _value(node, names)
    if isinstance(value, str):
        raise TypeError(f"{value} is no number")
    return value


def _mistake(kernel: Kernel, place: int, what: str, cure: str) -> LeverbenchError:
    where = f"{kernel.folder / MANIFEST}: restrictions[{place}]"
    return LeverbenchError(f"{kernel.restrictions[place]!r}: {what}", where=where, cure=cure)


def _shown(names: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in names.items())
