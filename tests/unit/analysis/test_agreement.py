"""Whether a variant changes answers: launches with answers of a token a letter."""

import pytest

from leverbench.analysis.agreement import agreement_of

PLAN = {
    "agreement": {"prompts": ["Count.", "Spell."], "max_tokens": 8, "tolerance": 0.2},
    "variants": {
        "baseline": {"parent": None, "delta": {}},
        "float32": {"parent": "baseline", "delta": {"args.dtype": ["bfloat16", "float32"]}},
        "newer": {"parent": "float32", "delta": {"version": ["1", "2"]}},
    },
}
CONDITIONS = {"digests": {"model": "m", "engine": "e"}, "machine": {"cpu": "a"}}


def launch(variant, session, *texts, **changes):
    answers = [
        {"prompt": prompt, "max_tokens": 8, "text": text, "token_ids": list(map(ord, text))}
        for prompt, text in zip(PLAN["agreement"]["prompts"], texts, strict=False)
    ]
    server = f"{variant}-s{session}"
    record = {"variant": variant, "server_id": server, "answers": answers, **CONDITIONS}
    return {server: {**record, **changes}}


def found(*launches, variant="float32", plan=PLAN):
    merged = {server: record for each in launches for server, record in each.items()}
    return agreement_of(plan, merged)[variant]


def test_only_variants_with_a_parent_are_compared_and_with_that_one():
    agreement = agreement_of(PLAN, launch("float32", 1, "abc") | launch("newer", 1, "abc"))

    assert set(agreement) == {"float32", "newer"}
    assert agreement["newer"].changed is False
    assert (agreement["float32"].changed, agreement["float32"].state) == (None, "not recorded")


def test_equal_answers_are_as_the_parent_s():
    agreement = found(
        *(launch(v, s, "abcde", "xy") for v in ("baseline", "float32") for s in (1, 2))
    )

    assert (agreement.changed, agreement.state) == (False, "as the parent")
    assert (agreement.mean, agreement.lowest, agreement.parents_own) == (1.0, 1.0, 1.0)
    assert agreement.launches == (2, 2)
    assert agreement.differing == ()


def test_one_prompt_below_the_tolerance_is_a_change():
    agreement = found(
        launch("baseline", 1, "abcde", "vwxyz"),
        launch("baseline", 2, "abcde", "vwxyz"),
        launch("float32", 1, "abcde", "vw-yz"),
    )

    assert (agreement.changed, agreement.state) == (True, "changed")
    # Of five tokens two are the common start.
    assert agreement.lowest == pytest.approx(0.4)
    assert agreement.mean == pytest.approx(0.7)
    (prompt,) = agreement.differing
    assert (prompt.prompt, prompt.tokens, prompt.unit) == ("Spell.", 2, "token ids")
    assert (prompt.parents_answer, prompt.answer) == ("vwxyz", "vw-yz")


def test_a_difference_within_the_tolerance_is_none():
    # The last of five tokens is another: 0.8 agree, and 0.8 are asked for.
    agreement = found(launch("baseline", 1, "abcde"), launch("float32", 1, "abcd-"))

    assert agreement.changed is False
    assert agreement.mean == pytest.approx(0.8)
    strict = {**PLAN, "agreement": {**PLAN["agreement"], "tolerance": 0.1}}
    assert found(launch("baseline", 1, "abcde"), launch("float32", 1, "abcd-"), plan=strict).changed


def test_a_parent_that_differs_from_itself_proves_nothing():
    parents = (launch("baseline", 1, "abcde", "vwxyz"), launch("baseline", 2, "ab-de", "vwxyz"))
    agreement = found(*parents, launch("float32", 1, "abcde", "vwxyz"))

    # The mean over both launches of the parent: (1 + 0.4) / 2.
    assert agreement.lowest == pytest.approx(0.7)
    assert (agreement.changed, agreement.state) == (None, "cannot be said")
    assert agreement.parents_own == pytest.approx((0.4 + 1) / 2)
    # Where the parent agrees with itself, a difference is one.
    assert found(*parents, launch("float32", 1, "abcde", "v-xyz")).changed is True


def test_one_launch_of_the_parent_tells_no_noise():
    agreement = found(launch("baseline", 1, "abcde"), launch("float32", 1, "-bcde"))

    assert agreement.changed is True
    assert agreement.parents_own is None


def test_only_what_both_were_asked_is_compared():
    agreement = found(launch("baseline", 1, "abcde", "vwxyz"), launch("float32", 1, "abcde"))
    assert [prompt.prompt for prompt in agreement.prompts] == ["Count."]

    longer = launch("float32", 1, "abcde")
    longer["float32-s1"]["answers"][0]["max_tokens"] = 99
    agreement = found(launch("baseline", 1, "abcde"), longer)
    assert (agreement.prompts, agreement.changed) == ((), None)
    assert (agreement.mean, agreement.state) == (None, "cannot be said")


@pytest.mark.parametrize(
    "other",
    [
        {"digests": {"model": "other", "engine": "e"}},
        {"digests": {"model": "m", "engine": "other"}},
        {"machine": {"cpu": "b"}},
    ],
)
def test_launches_of_other_conditions_are_not_compared(other):
    agreement = found(launch("baseline", 1, "abc"), launch("float32", 1, "xyz", **other))

    assert agreement.state == "not recorded"


def test_another_engine_is_compared_where_it_is_the_lever():
    digests = {"model": "m", "engine": "other"}
    newer = launch("newer", 1, "abc", digests=digests)

    assert found(launch("float32", 1, "abc"), newer, variant="newer").changed is False


@pytest.mark.parametrize("settings", [{}, {"agreement": None}])
def test_without_the_setting_nothing_is_said(settings):
    plan = {"variants": PLAN["variants"], **settings}
    agreement = found(launch("baseline", 1, "a"), launch("float32", 1, "b"), plan=plan)

    assert (agreement.changed, agreement.state) == (None, "not recorded")


@pytest.mark.parametrize("answers", [None, []])
def test_launches_without_answers_are_as_if_they_were_not(answers):
    agreement = found(launch("baseline", 1, "a"), launch("float32", 1, answers=answers))

    assert agreement.state == "not recorded"
