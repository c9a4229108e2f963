"""Times of one method are made in one way: a change of the sources asks whether it is so."""

from pathlib import Path

from protocol_digests import digest_of

from leverbench import tuning
from leverbench.tuning.tune import METHOD_VERSION

METHOD = 1
SHAPING = {
    "race.py": "335a3921e98d63cb",
    "search.py": "bd790d4473dec3cd",
    "timing_script.py": "6f6b020d5c00d5ab",
}


def test_the_sources_are_those_of_the_method():
    folder = Path(tuning.__file__).parent
    found = {name: digest_of((folder / name).read_text())[:16] for name in SHAPING}

    assert (METHOD_VERSION, found) == (METHOD, SHAPING), (
        "what is timed may have changed: raise METHOD_VERSION in tuning/tune.py and METHOD here,"
        " so that journals of before are set aside; or, where no time is affected, write the new"
        " digest here alone"
    )
