"""The candidates of a kernel at the dimensions of a call."""

import ast
import itertools
import operator
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import (
    CORES,
    MANIFEST,
    MULTIPROCESSORS,
    SHARED_BYTES,
    Candidate,
    Dimensions,
    Kernel,
    Value,
)
from leverbench.tuning.gpu import Gpu

_FACTS_OF_GPU = (MULTIPROCESSORS, SHARED_BYTES)

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
_OF = "integers and names of parameters, dimensions, cores, multiprocessors and shared_bytes"
_CURE = (
    f"A restriction compares {_OF}, with + - * // % and, or, not; such as: block <= context."
    " order: is computed from the same"
)


@dataclass(frozen=True)
class Space:
    """What can be tried at a call's dimensions.

    Attributes:
        candidates: Those that meet every restriction: the default first, then by the manifest's
            ``order``; where that is equal or there is none, in the order in which the manifest
            names the values, the last parameter changing fastest.
        restricted: How many others there are, by the first restriction that each does not meet;
            one that refuses none is left out.
    """

    candidates: tuple[Candidate, ...]
    restricted: Mapping[str, int]


@dataclass(frozen=True)
class Expression:
    """An expression of a manifest, in which every name is known.

    Attributes:
        text: As it is written.
        where: File and place.
        tree: Its syntax tree.
    """

    text: str
    where: str
    tree: ast.expr

    def value(self, names: Mapping[str, Value]) -> int:
        """Returns its value; a comparison's is 0 or 1.

        Raises:
            LeverbenchError: It has none.
        """
        try:
            return _integer(self.tree, names)
        except (TypeError, ZeroDivisionError) as error:
            raise self.mistake(
                f"it cannot be told at {_shown(names)} ({error})",
                "Texts can only be compared with texts, and nothing is divided by 0.",
            ) from None

    def mistake(self, what: str, cure: str) -> LeverbenchError:
        """Returns what is said of it where something is wrong."""
        return LeverbenchError(f"{self.text!r}: {what}", where=self.where, cure=cure)


def make_space(kernel: Kernel, dimensions: Dimensions, gpu: Gpu | None = None) -> Space:
    """Returns the candidates of a kernel for a call on this machine.

    Args:
        kernel: The kernel.
        dimensions: Of the call: shape and size.
        gpu: The GPU that it is called on; None for the CPU, or where it is not known.

    Raises:
        LeverbenchError: An expression is wrong or names what is not known of this machine, or the
            default does not meet a restriction.
    """
    facts: dict[str, Value] = {CORES: len(os.sched_getaffinity(0))}
    if gpu is not None:
        facts[MULTIPROCESSORS] = gpu.multiprocessors
        if gpu.shared_bytes is not None:
            facts[SHARED_BYTES] = gpu.shared_bytes
    restrictions, order = parse_expressions(kernel, known=facts)
    fixed = {**facts, **dimensions}
    products = [
        dict(zip(kernel.parameters, values, strict=True))
        for values in itertools.product(*kernel.parameters.values())
    ]
    default = dict(kernel.default)
    for restriction in restrictions:
        if not restriction.value({**fixed, **default}):
            raise restriction.mistake(
                f"the default does not meet it at {_shown(fixed)}",
                "Choose a default that can be used at each of the kernel's dimensions.",
            )
    kept, restricted = [], Counter[str]()
    for candidate in products:
        names = {**fixed, **candidate}
        refusing = next((each for each in restrictions if not each.value(names)), None)
        if refusing is not None:
            restricted[refusing.text] += 1
        elif candidate != default:
            kept.append(candidate)
    if order is not None:
        kept.sort(key=lambda candidate: order.value({**fixed, **candidate}))
    return Space((default, *kept), restricted)


# Their values are found by recursion.
_MOST_NODES = 300


def parse_expressions(
    kernel: Kernel, known: Collection[str] = (CORES, *_FACTS_OF_GPU)
) -> tuple[list[Expression], Expression | None]:
    """Returns a kernel's restrictions, and its order where it has one.

    Args:
        kernel: The kernel.
        known: What is known of the machine. Default, all that can be known of one with a GPU.

    Raises:
        LeverbenchError: One is wrong, or names what is not known.
    """
    path = kernel.folder / MANIFEST
    restrictions = [
        _parsed(kernel, text, f"{path}: restrictions[{place}]", known)
        for place, text in enumerate(kernel.restrictions)
    ]
    if kernel.order is None:
        return restrictions, None
    return restrictions, _parsed(kernel, kernel.order, f"{path}: order", known)


def _parsed(kernel: Kernel, text: str, where: str, known: Collection[str]) -> Expression:
    sizes = {kernel.size} if kernel.size is not None else set()
    names = {*kernel.parameters, *kernel.shapes[0], *sizes, *known}
    empty = Expression(text, where, ast.Constant(0))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise empty.mistake("it is no expression", _CURE) from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise empty.mistake("it is too long", "Write several shorter ones.")
    for node in ast.walk(tree):
        if not _is_allowed(node):
            raise empty.mistake(f"{ast.unparse(node)} is not allowed", _CURE)
        if isinstance(node, ast.Name) and node.id not in names:
            if node.id in _FACTS_OF_GPU:
                raise empty.mistake(
                    f"{node.id} is a fact of a GPU, and is not known here",
                    "Tune it on a machine with a GPU whose compute capability is in tuning/gpu.py.",
                )
            raise empty.mistake(
                f"nothing is called {node.id}", f"There are: {', '.join(sorted(names))}."
            )
    return Expression(text, where, tree.body)


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, str)  # a text is a dtype's name
    operators = [
        child
        for child in ast.iter_child_nodes(node)
        if isinstance(child, (ast.operator, ast.unaryop, ast.cmpop))
    ]
    return all(isinstance(each, _ALLOWED) for each in (node, *operators))


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    """Returns the value of what `parse_expressions` let through."""
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


def _shown(names: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in names.items())
