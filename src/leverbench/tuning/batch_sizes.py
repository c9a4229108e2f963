"""The values of M, rows of a GEMM's input, that a kernel is tuned for."""

from collections.abc import Iterable

# The sizes of the files that engines ship. A call between two of them takes the nearest one's.
SHIPPED_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


def decode_sizes(
    concurrencies: Iterable[int], draft_tokens: int, captured: Iterable[int] | None
) -> tuple[int, ...]:
    """Returns the values of M of a campaign's decode steps, ascending.

    A step of C requests replays the smallest graph of at least C, padded up to it; where none is
    large enough, or none is known, it has the rows of C itself.
    """
    graphs = sorted(captured or ())
    padded = {next((graph for graph in graphs if graph >= c), c) for c in concurrencies}
    return tuple(sorted(batch * draft_tokens for batch in padded))
