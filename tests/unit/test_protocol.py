"""Figures of one protocol are made in one way: a change of the sources asks whether it is so."""

import re
from textwrap import dedent

import protocol_digests as digests
import pytest

from leverbench.protocol import PROTOCOL_VERSION

SOURCE = '''
"""About it."""
import os  # a comment

LIMIT = 1
"""What it limits."""


class Point:
    """A point."""

    size: int = 2


def f(x, *, y=1.0):
    """Says so."""
    return f"{x!r:>{y}} is" f" a {os.sep}" "b"
'''
SAME = '''
import os
LIMIT = (1)
class Point:
    """Another text."""
    size: int = 2
def f(
    x,
    *,
    y=1.0,
):
    # Other words.
    return f"{x!r:>{y}} is a {os.sep}b"
'''


def test_the_sources_are_those_of_the_protocol():
    changed = digests.changed(digests.read_log(), digests.present_digests())

    assert not changed, (
        f"{', '.join(changed)} changed: what is measured may have changed with it. Either raise"
        " PROTOCOL_VERSION in src/leverbench/protocol.py, add a row to docs/protocol.md and run"
        " `python tests/protocol_digests.py`: rows of before are then not pooled with new ones."
        ' Or, where no figure is affected: `python tests/protocol_digests.py "WHY NOT"`.'
    )


def test_the_log_tells_for_each_change_which_of_the_two_it_was():
    last = 0
    for entry in digests.read_log():
        assert entry["digests"]
        if entry["protocol"] == last:
            assert len(entry["no_effect_on_figures"]) > 10
        else:
            assert entry["protocol"] == last + 1
            assert entry["no_effect_on_figures"] is None
        last = entry["protocol"]
    assert last == PROTOCOL_VERSION


def test_each_protocol_has_a_row_that_says_what_it_is():
    text = (digests.ROOT / "docs/protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)

    assert [int(version) for version, _ in rows] == list(range(1, PROTOCOL_VERSION + 1))


def test_words_and_layout_do_not_count():
    assert digests.digest_of(SOURCE) == digests.digest_of(SAME)
    # Written down: it must be this one with each version of Python.
    assert digests.digest_of(SOURCE)[:16] == "6f5f009a580162aa"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 1", "LIMIT = 1.0"),
        ("LIMIT = 1", "LIMIT = True"),
        ("size: int = 2", "size: int = 3"),
        ("y=1.0", "y=1.1"),
        ("x, *, y=1.0", "x, y=1.0"),
        ("!r", "!s"),
        (":>{y}", ":<{y}"),
        (" is", " was"),
        ("return f", "yield f"),
        ("import os", "import os as os"),
    ],
)
def test_what_a_program_does_counts(old, new):
    assert old in SOURCE
    assert digests.digest_of(SOURCE.replace(old, new)) != digests.digest_of(SOURCE)


def test_one_definition_is_looked_at_alone():
    other = SOURCE.replace("LIMIT = 1", "LIMIT = 7")

    assert digests.digest_of(other, "Point") == digests.digest_of(SOURCE, "Point")
    assert digests.digest_of(other, "f") != digests.digest_of(SOURCE, "Point")
    with pytest.raises(LookupError, match="no Gone at the top level"):
        digests.digest_of(SOURCE, "Gone")


def test_a_change_is_accepted_with_a_new_protocol_or_a_reason():
    log = [{"protocol": 1, "no_effect_on_figures": None, "digests": {"a": "1", "b": "2"}}]
    present = {"a": "9", "c": "3"}
    changed = {"a": "9", "c": "3", "b": None}

    with pytest.raises(ValueError, match="raise PROTOCOL_VERSION"):
        digests.next_entry(log, present, 1, None)
    reasoned = digests.next_entry(log, present, 1, "renamed, nothing else")
    assert reasoned == {
        "protocol": 1,
        "no_effect_on_figures": "renamed, nothing else",
        "digests": changed,
    }
    raised = digests.next_entry(log, present, 2, None)
    assert raised == {"protocol": 2, "no_effect_on_figures": None, "digests": changed}
    assert digests.changed([*log, raised], present) == {}


def test_the_failing_test_names_what_changed(monkeypatch):
    present = {**digests.present_digests(), "load/client.py": "0"}
    monkeypatch.setattr(digests, "present_digests", lambda: present)

    with pytest.raises(AssertionError, match=r"load/client\.py changed: .*PROTOCOL_VERSION"):
        test_the_sources_are_those_of_the_protocol()


def test_a_u_before_a_text_is_no_change():
    plain = dedent("""\
        x = "a"
    """)

    assert digests.digest_of(plain) == digests.digest_of(plain.replace('"a"', 'u"a"'))
