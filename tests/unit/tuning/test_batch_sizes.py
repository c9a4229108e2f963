"""The values of M: what a campaign runs comes first."""

import pytest

from leverbench.tuning.batch_sizes import SHIPPED_SIZES, batch_sizes, decode_sizes


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


def test_the_campaign_s_own_come_first_and_the_rest_of_the_shipped_after_them():
    sizes = batch_sizes([1, 8, 16, 5], 4, [1, 8, 16])

    assert sizes[:3] == (4, 32, 64)
    assert sizes[3:7] == (1, 2, 8, 16)
    assert sorted(sizes) == sorted(SHIPPED_SIZES)
    assert len(sizes) == 18


def test_a_size_that_no_shipped_file_has_is_added():
    assert batch_sizes([12], 1, None) == (12, *SHIPPED_SIZES)
