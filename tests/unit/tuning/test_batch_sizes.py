"""The values of M that a campaign's decode steps have."""

import pytest

from leverbench.tuning.batch_sizes import decode_sizes


@pytest.mark.parametrize(
    ("concurrencies", "draft_tokens", "captured", "expected"),
    [
        pytest.param([16, 1, 8], 1, [1, 8, 16], (1, 8, 16), id="captured as measured"),
        pytest.param([1, 8, 16], 2, [1, 2, 4, 8, 16, 32], (2, 16, 32), id="two draft tokens"),
        pytest.param([1, 8, 16], 4, [1, 8, 16], (4, 32, 64), id="four draft tokens"),
        pytest.param([3, 9, 10], 1, [16, 4, 12], (4, 12), id="padded up, two to one graph"),
        pytest.param([5], 3, [8], (24,), id="padded before it is multiplied"),
        pytest.param([20], 2, [8, 16], (40,), id="no graph is large enough"),
        pytest.param([3], 2, None, (6,), id="captured is unknown"),
        pytest.param([3], 2, [], (6,), id="nothing is captured"),
    ],
)
def test_decode_steps_have_the_rows_of_the_graph_that_they_replay(
    concurrencies, draft_tokens, captured, expected
):
    assert decode_sizes(concurrencies, draft_tokens, captured) == expected
