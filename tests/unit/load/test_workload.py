import pytest

from leverbench.campaign.model import Workload
from leverbench.errors import LeverbenchError
from leverbench.load.workload import make_requests

WORKLOAD = Workload("random-ids", input_tokens=5, output_tokens=3)
SEED = [1, "s1", "random", 16, "measured"]


def test_lengths_indices_and_vocabulary_are_as_asked():
    vocabulary = [7, 11, 13]

    requests = make_requests(WORKLOAD, 40, vocabulary, SEED)

    assert [request.index for request in requests] == list(range(40))
    assert {len(request.input_ids) for request in requests} == {5}
    assert {request.output_tokens for request in requests} == {3}
    assert {i for request in requests for i in request.input_ids} == {7, 11, 13}
    assert all(type(i) is int for i in requests[0].input_ids)


def test_a_range_is_a_vocabulary():
    ids = {i for r in make_requests(WORKLOAD, 50, range(100, 104), SEED) for i in r.input_ids}

    assert ids == {100, 101, 102, 103}


def test_equal_seed_parts_give_equal_prompts():
    assert make_requests(WORKLOAD, 8, range(1000), SEED) == make_requests(
        WORKLOAD, 8, range(1000), list(SEED)
    )


@pytest.mark.parametrize("place", range(len(SEED)))
def test_each_seed_part_changes_all_prompts(place):
    other = [*SEED]
    other[place] = "other"

    first = {r.input_ids for r in make_requests(WORKLOAD, 8, range(1000), SEED)}
    second = {r.input_ids for r in make_requests(WORKLOAD, 8, range(1000), other)}

    assert not first & second


@pytest.mark.parametrize("vocabulary", [range(1000), range(4)])
def test_fewer_requests_are_the_first_of_more(vocabulary):
    assert (
        make_requests(WORKLOAD, 7, vocabulary, SEED)
        == make_requests(WORKLOAD, 48, vocabulary, SEED)[:7]
    )


def test_no_prompt_starts_like_another_while_the_vocabulary_lasts():
    firsts = [r.input_ids[0] for r in make_requests(WORKLOAD, 48, range(48), SEED)]

    assert sorted(firsts) == list(range(48))
    assert firsts != list(range(48))


def test_an_unknown_dataset_is_refused():
    with pytest.raises(LeverbenchError, match="unknown dataset 'poems'"):
        make_requests(Workload("poems", 5, 3), 1, range(10), SEED)


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(LeverbenchError, match="no token ids"):
        make_requests(WORKLOAD, 1, [], SEED)
