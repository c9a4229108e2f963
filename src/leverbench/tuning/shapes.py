"""GEMM shapes: those derived from a model's configuration, and those that a server looks up."""

from collections.abc import Sequence
from dataclasses import dataclass

# (N, K, rows of a block, columns of a block)
_Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class GemmShape:
    """A block-quantised GEMM on one rank: ``(M, K) x (K, N)``, M being the tokens of a step.

    Attributes:
        n: Outputs of a rank's part of the weight.
        k: Inputs of a rank's part of the weight.
        block_n: Outputs that share a scale.
        block_k: Inputs that share a scale.
        layers: Names of the layers of this shape, such as ``("wq_b", "indexer.wq_b")``.
    """

    n: int
    k: int
    block_n: int
    block_k: int
    layers: tuple[str, ...]

    @property
    def key(self) -> _Key:
        """What a tuned file is looked up by, besides device and dtype."""
        return (self.n, self.k, self.block_n, self.block_k)


@dataclass(frozen=True)
class LookedUp:
    """One line of a server's log: a process looked for a tuned file.

    Attributes:
        n: Outputs.
        k: Inputs.
        block_n: Outputs that share a scale.
        block_k: Inputs that share a scale.
        device: The device's name as it stands in the file's name.
        dtype: The dtype as it stands in the file's name.
        hit: Whether there was a file.
        path: The file, as the log names it.
        rank: The process, such as ``TP0`` or ``DP1_TP0``; None in a server of one rank.
    """

    n: int
    k: int
    block_n: int
    block_k: int
    device: str
    dtype: str
    hit: bool
    path: str
    rank: str | None

    @property
    def key(self) -> _Key:
        """What the file was looked up by, besides device and dtype."""
        return (self.n, self.k, self.block_n, self.block_k)


@dataclass(frozen=True)
class Alternative:
    """What would be looked up if something were otherwise than the derivation has it.

    Attributes:
        because: What would be otherwise, as a clause: ``the server ran with tp-size 2``.
        shapes: The shapes in that case.
    """

    because: str
    shapes: tuple[GemmShape, ...]


@dataclass(frozen=True)
class Difference:
    """A shape that is only derived, or only looked up.

    Attributes:
        n: Outputs.
        k: Inputs.
        block_n: Outputs that share a scale.
        block_k: Inputs that share a scale.
        derived: Whether it is the derivation that has it.
        layers: The layers that have this shape, or likely have it; empty where it is unknown.
        reason: A sentence that says what is likely, or that it is unknown.
    """

    n: int
    k: int
    block_n: int
    block_k: int
    derived: bool
    layers: tuple[str, ...]
    reason: str


def compare(
    derived: Sequence[GemmShape],
    looked_up: Sequence[LookedUp],
    alternatives: Sequence[Alternative] = (),
) -> list[Difference]:
    """Returns the shapes on which derivation and log disagree.

    A log does not say why it holds a shape. So a reason is the alternative that explains this
    shape and leaves the fewest differences to the whole log, and only if those are fewer than
    without it; what none explains is called unknown.

    Args:
        derived: The shapes of the model at the settings of the server.
        looked_up: What the server's log says, of any number of ranks.
        alternatives: What else could be the case; of equal ones the first is taken.

    Returns:
        What is only derived, then what is only looked up, each in the order given.
    """
    expected = {shape.key: shape.layers for shape in derived}
    seen = list(dict.fromkeys(lookup.key for lookup in looked_up))
    cases = [(a.because, {shape.key: shape.layers for shape in a.shapes}) for a in alternatives]
    cases = [case for case in cases if _apart(case[1], seen) < _apart(expected, seen)]
    cases.sort(key=lambda case: _apart(case[1], seen))
    differences = []
    for key, layers in expected.items():
        if key not in seen:
            because = next((because for because, shapes in cases if key not in shapes), None)
            reason = _why_only_derived(layers, because, bool(seen))
            differences.append(Difference(*key, derived=True, layers=layers, reason=reason))
    for key in seen:
        if key not in expected:
            found = next(((why, shapes[key]) for why, shapes in cases if key in shapes), None)
            layers = found[1] if found else ()
            reason = _why_only_looked_up(found)
            differences.append(Difference(*key, derived=False, layers=layers, reason=reason))
    return differences


def _apart(shapes: dict[_Key, tuple[str, ...]], seen: list[_Key]) -> int:
    return len(shapes.keys() ^ set(seen))


def _why_only_derived(layers: tuple[str, ...], because: str | None, any_seen: bool) -> str:
    if not any_seen:
        return (
            "Likely no GEMM had run when the log was read, or another backend serves them all:"
            " no shape was looked up."
        )
    if because:
        return f"Likely because {because}."
    return (
        f"Unknown. {' and '.join(layers)} may not have run yet, another backend may serve this"
        " shape, or a plugin may have answered in the engine's place."
    )


def _why_only_looked_up(found: tuple[str, tuple[str, ...]] | None) -> str:
    if found is None:
        return "Unknown. No layer that is derived from the model's configuration has this shape."
    because, layers = found
    return f"Likely {' and '.join(layers)}, because {because}."
