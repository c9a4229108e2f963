import pytest

from leverbench.load.window import ClientAudit, Failure, Window, mean_in_flight

AUDIT = ClientAudit(None, None, None, 0.0, None)


def test_duration_is_from_the_first_intended_send_to_the_last_byte(row):
    rows = (row(0.5, 2.0, sent_s=0.7), row(0.5, 3.0, ended_s=4.0), row(2.0, 3.5))

    assert Window(2, 0.0, rows, AUDIT).duration_s == pytest.approx(3.5)


def test_successful_are_those_without_a_failure(row):
    good, bad = row(0.0, 1.0), row(0.0, 1.0, failure=Failure.BROKEN, error="cut")

    assert Window(2, 0.0, (good, bad), AUDIT).successful == (good,)


def test_a_row_knows_its_first_and_last_token(row):
    some, none = row(0.0, 1.0, 1.5, 2.5), row(0.0)

    assert (some.first_token_s, some.last_token_s) == (1.0, 2.5)
    assert (none.first_token_s, none.last_token_s) == (None, None)


def test_mean_in_flight_leaves_out_the_drain(row):
    # Two slots; one idles from 1 s to 2 s. Until the last send at 2 s: 2, then 1 in flight.
    rows = [row(0.0, 1.0), row(0.0, 5.0), row(1.0, 9.0, sent_s=2.0)]

    assert mean_in_flight(rows, concurrency=2) == pytest.approx(1.5)


def test_mean_in_flight_needs_more_requests_than_slots(row):
    assert mean_in_flight([row(0.0, 1.0), row(0.0, 1.0)], concurrency=2) is None
