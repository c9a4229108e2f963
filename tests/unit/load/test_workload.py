import numpy as np
import pytest

from leverbench.campaign.model import FILE, SharedPrefix, Workload
from leverbench.errors import LeverbenchError
from leverbench.load.prompts import Prompts
from leverbench.load.workload import make_requests
from leverbench.records import digest

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


def test_ids_of_one_length_are_those_that_earlier_versions_drew():
    requests = make_requests(Workload("random-ids", 5, 3), 7, range(1000), SEED)
    drawn = [[r.index, list(r.input_ids), r.output_tokens] for r in requests]

    assert digest(drawn)[:16] == "7fc0816f8d03b9d4"


MIXED = Workload("random-ids", input_tokens=(2, 9), output_tokens=(3, 6))


def test_lengths_are_drawn_from_their_ranges_both_ends_included():
    requests = make_requests(MIXED, 300, range(1000), SEED)

    assert {len(r.input_ids) for r in requests} == set(range(2, 10))
    assert {r.output_tokens for r in requests} == set(range(3, 7))


def test_fewer_requests_of_mixed_lengths_are_the_first_of_more():
    seven = make_requests(MIXED, 7, range(1000), SEED)

    assert seven == make_requests(MIXED, 48, range(1000), SEED)[:7]


def test_windows_of_one_shape_have_the_same_lengths_and_other_ids():
    first, second = (
        make_requests(MIXED, 20, range(1000), [*SEED, n], shape_parts=SEED) for n in (1, 2)
    )

    for name in ("input_ids", "output_tokens"):
        lengths = [[np.size(getattr(r, name)) for r in window] for window in (first, second)]
        assert lengths[0] == lengths[1]
    assert [r.output_tokens for r in first] == [r.output_tokens for r in second]
    assert not {r.input_ids for r in first} & {r.input_ids for r in second}


SHARED = Workload("random-ids", (10, 14), 3, SharedPrefix(tokens=8, groups=3))


def test_prompts_begin_with_one_of_the_prefixes_and_differ_right_after_it():
    requests = make_requests(SHARED, 60, range(1000), SEED)

    assert len({r.input_ids[:8] for r in requests}) == 3
    assert len({r.input_ids[0] for r in requests}) == 3
    assert len({r.input_ids[8] for r in requests}) == 60
    assert {len(r.input_ids) for r in requests} == set(range(10, 15))
    assert make_requests(SHARED, 7, range(1000), SEED) == requests[:7]


def test_prefixes_are_others_in_another_window():
    first, second = (make_requests(SHARED, 9, range(1000), [*SEED, n]) for n in (1, 2))

    assert not {r.input_ids[:8] for r in first} & {r.input_ids[:8] for r in second}


TEXT = Workload(FILE, path="chat.jsonl", content="0" * 64)
PROMPTS = Prompts(
    ids=np.arange(60), ends=np.arange(3, 63, 3), output_tokens=np.arange(1, 21), lines=np.arange(20)
)


def test_requests_of_a_file_are_its_lines_each_at_most_once():
    requests = make_requests(TEXT, 20, (), SEED, PROMPTS)

    assert [r.index for r in requests] == list(range(20))
    assert {r.input_ids: r.output_tokens for r in requests} == {
        (3 * n, 3 * n + 1, 3 * n + 2): n + 1 for n in range(20)
    }
    assert [r.output_tokens for r in requests] != list(range(1, 21))
    assert all(type(r.output_tokens) is int for r in requests)
    assert make_requests(TEXT, 7, (), SEED, PROMPTS) == requests[:7]
    assert make_requests(TEXT, 20, (), [*SEED, 2], PROMPTS) != requests


def test_a_file_with_too_few_lines_is_refused():
    with pytest.raises(LeverbenchError, match=r"chat\.jsonl: it has 20 requests, and .* needs 21"):
        make_requests(TEXT, 21, (), SEED, PROMPTS)


def test_the_longest_request_of_a_file_is_known_by_its_line():
    assert PROMPTS.longest() == (23, 19)
