import pytest

from leverbench.load.sse import split_events


def test_an_events_time_is_that_of_the_chunk_that_holds_its_end():
    chunks = [b"data: a\n\n", b"data: b", b"\n", b"\ndata: c\n\ndata: d\n\n"]

    payloads, times_s = split_events(chunks, [1.0, 2.0, 3.0, 4.0])

    assert payloads == [b"a", b"b", b"c", b"d"]
    assert times_s == [1.0, 4.0, 4.0, 4.0]


def test_an_event_that_ends_with_its_chunk_does_not_wait_for_the_next():
    assert split_events([b"data: a\n\n", b"data: b\n\n"], [1.0, 2.0])[1] == [1.0, 2.0]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_each_split_of_the_bytes_gives_the_same_events(end):
    stream = b"data: {1}" + end * 2 + b"data:{2}" + end * 2
    for cut in range(1, len(stream)):
        payloads, times_s = split_events([stream[:cut], stream[cut:]], [1.0, 2.0])

        first_end = len(b"data: {1}" + end * 2)
        assert payloads == [b"{1}", b"{2}"]
        assert times_s == [1.0 if cut >= first_end else 2.0, 2.0]


def test_comments_and_other_fields_are_no_events():
    chunks = [b": ping\n\nevent: x\nid: 3\ndata: a\n\n"]

    assert split_events(chunks, [1.0]) == ([b"a"], [1.0])


def test_data_lines_of_one_event_are_joined():
    assert split_events([b"data: a\ndata:  b\n\n"], [1.0])[0] == [b"a\n b"]


def test_an_unfinished_event_is_dropped():
    assert split_events([b"data: a\n\ndata: b\n"], [1.0]) == ([b"a"], [1.0])


def test_no_chunks_are_no_events():
    assert split_events([], []) == ([], [])
