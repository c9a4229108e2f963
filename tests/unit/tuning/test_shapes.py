"""Derived shapes against those that a log shows: what differs, and how sure the reason is."""

from leverbench.tuning.shapes import Alternative, Difference, GemmShape, LookedUp, compare


def shape(n: int, k: int, *layers: str, block: int = 128) -> GemmShape:
    return GemmShape(n, k, block, block, layers)


def lookup(n: int, k: int, rank: int | None = None, block: int = 128) -> LookedUp:
    return LookedUp(n, k, block, block, "GPU", "fp8_w8a8", False, f"/N={n},K={k}", rank)


UP, DOWN, WHOLE = shape(1024, 256, "up"), shape(256, 512, "down"), shape(768, 256, "ab")
HALVES = (shape(512, 256, "a"), shape(256, 256, "b"))


def test_nothing_differs_however_many_ranks_tell_it_and_in_whichever_order():
    told = [lookup(256, 512, rank) for rank in (0, 1)] + [lookup(1024, 256, 1)]

    assert compare([UP, DOWN], told) == []


def test_a_fused_layer_that_was_looked_up_in_halves():
    (fused, first, second) = compare(
        [UP, WHOLE],
        [lookup(1024, 256), lookup(512, 256), lookup(256, 256)],
        [Alternative("it ran unfused", (UP, *HALVES))],
    )

    assert fused == Difference(
        768, 256, 128, 128, derived=True, layers=("ab",), reason="Likely because it ran unfused."
    )
    assert first == Difference(
        *(512, 256, 128, 128),
        derived=False,
        layers=("a",),
        reason="Likely a, because it ran unfused.",
    )
    assert second.layers == ("b",)


def test_the_reason_is_the_alternative_that_leaves_least_to_the_whole_log():
    draft, head = shape(2048, 256, "draft"), shape(2048, 2048, "head")
    told = [lookup(each.n, each.k) for each in (UP, DOWN, draft, head)]
    some = Alternative("it was of another kind", (UP, DOWN, shape(2048, 256, "other")))
    all_of_it = Alternative("it speculated", (UP, DOWN, draft, head))

    assert [difference.reason for difference in compare([UP, DOWN], told, [some, all_of_it])] == [
        "Likely draft, because it speculated.",
        "Likely head, because it speculated.",
    ]


def test_an_alternative_that_fits_the_log_no_better_is_no_reason():
    worse = Alternative("it ran on more ranks", (shape(512, 256, "up"), shape(256, 256, "down")))

    (difference,) = compare([UP, DOWN], [lookup(1024, 256)], [worse])

    assert (difference.n, difference.k, difference.layers) == (256, 512, ("down",))
    assert difference.reason.startswith("Unknown. down may not have run yet, another backend may")


def test_two_settings_that_differ_each_explain_their_own():
    differences = compare(
        [UP, WHOLE],
        [lookup(1024, 256), lookup(512, 256), lookup(256, 256), lookup(2048, 2048)],
        [
            Alternative("it speculated", (UP, WHOLE, shape(2048, 2048, "draft"))),
            Alternative("it ran unfused", (UP, *HALVES)),
        ],
    )

    assert [difference.reason for difference in differences] == [
        "Likely because it ran unfused.",
        "Likely a, because it ran unfused.",
        "Likely b, because it ran unfused.",
        "Likely draft, because it speculated.",
    ]


def test_a_shape_that_nothing_explains_is_called_unknown():
    (difference,) = compare([UP], [lookup(1024, 256), lookup(3, 5)])

    assert (difference.derived, difference.layers) == (False, ())
    assert difference.reason == (
        "Unknown. No layer that is derived from the model's configuration has this shape."
    )


def test_another_block_is_another_shape():
    (derived, seen) = compare([UP], [lookup(1024, 256, block=32)])

    assert (derived.block_n, derived.derived) == (128, True)
    assert (seen.block_n, seen.derived) == (32, False)


def test_a_log_without_any_lookup_says_that_nothing_ran_or_all_is_served_elsewhere():
    reasons = {
        difference.reason
        for difference in compare([UP, DOWN], [], [Alternative("it had no layers", ())])
    }

    assert reasons == {
        "Likely no GEMM had run when the log was read, or another backend serves them all:"
        " no shape was looked up."
    }
