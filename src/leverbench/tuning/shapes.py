"""Shapes of the GEMMs that a model does on one rank."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GemmShape:
    """A weight's shape, and the layers that have it.

    Attributes:
        n: Rows of the weight, the outputs.
        k: Its columns, the inputs.
        block_n: Rows of the block that one scale belongs to.
        block_k: Its columns.
        layers: Names of the layers.
    """

    n: int
    k: int
    block_n: int
    block_k: int
    layers: tuple[str, ...]
