import pytest
from unit.analysis.fake_campaign import chosen, timed, write_campaign

from leverbench.analysis.ceilings import Ceiling
from leverbench.analysis.predictions import (
    Call,
    KernelResults,
    new_kernels,
    predicted_gain,
    predictions,
    read_kernels,
)
from leverbench.errors import LeverbenchError
from leverbench.records import read_record


def call(batch: int, speedup: float, heads: int = 4, fallback_s: float = 1.0) -> Call:
    dimensions = {"batch": batch, "heads": heads}
    return Call(dimensions, {}, fallback_s, speedup, speedup - 0.5, speedup + 0.5)


def kernel(*calls: Call, name: str = "decode", size: str | None = "batch") -> KernelResults:
    return KernelResults(name, ("attention",), size, calls, ())


def bound(concurrency: int = 16, lever: str = "decode", share: float = 0.5) -> Ceiling:
    gain = 1 / (1 - share)
    return Ceiling("up", "random", concurrency, lever, ("attention",), share, gain, "p")


def predict(*kernels: KernelResults, at: Ceiling):
    return predictions([at], {"up": kernels})


def test_half_of_the_time_twice_as_fast_is_a_third_more():
    assert predicted_gain(0.5, 2) == pytest.approx(4 / 3)
    assert predicted_gain(0, 9) == predicted_gain(0.7, 1) == 1
    assert predicted_gain(1, 4) == pytest.approx(4)
    # A loss: 0.5 + 0.5 * 2.
    assert predicted_gain(0.5, 0.5) == pytest.approx(2 / 3)
    for share, speedup in ((1.1, 2), (-0.1, 2), (0.5, 0), (float("nan"), 2)):
        with pytest.raises(ValueError, match="predicts nothing"):
            predicted_gain(share, speedup)


def test_a_kernel_is_predicted_by_its_calls_and_its_share():
    (found,) = predict(kernel(call(16, 4.0)), at=bound(share=0.6))

    assert (found.kernel, found.size, found.alone) == ("decode", 16, True)
    assert (found.speedup, found.low, found.high) == pytest.approx((4.0, 3.5, 4.5))
    # 1 / (0.4 + 0.6 / 4), and a ceiling of 1 / 0.4.
    assert found.gain == pytest.approx(1 / 0.55)
    assert found.ceiling.gain == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("concurrency", "size"), [(1, 2), (4, 2), (5, 2), (6, 8), (16, 16), (99, 16)]
)
def test_the_calls_of_the_nearest_size_count(concurrency, size):
    calls = (call(2, 2.0), call(8, 8.0), call(16, 16.0))
    (found,) = predict(kernel(*calls), at=bound(concurrency))

    assert (found.size, found.speedup) == (size, size)


def test_shapes_count_by_the_time_that_they_took_before():
    calls = (call(16, 3.0, heads=4, fallback_s=3.0), call(16, 1.0, heads=8, fallback_s=1.0))
    (found,) = predict(kernel(*calls, call(1, 99.0)), at=bound())

    # 4 s before, 1 + 1 after.
    assert found.speedup == pytest.approx(2.0)


def test_without_sizes_all_calls_count():
    (found,) = predict(kernel(call(1, 2.0), call(16, 2.0), size=None), at=bound())

    assert (found.size, found.speedup) == (None, 2.0)


def test_without_a_micro_benchmark_there_is_the_ceiling_alone():
    (found,) = predict(kernel(), at=bound())

    assert (found.speedup, found.gain, found.ceiling.gain) == (None, None, 2)


def test_ceilings_of_other_levers_predict_nothing():
    assert predict(kernel(call(16, 2.0)), at=bound(lever="nccl")) == []


def test_several_kernels_of_one_variant_are_not_told_apart():
    kernels = (kernel(call(16, 2.0)), kernel(call(16, 2.0), name="norm"))
    (found,) = predict(*kernels, at=bound())

    assert not found.alone


def test_a_kernel_that_the_parent_has_is_no_change():
    results = {folder: kernel(name=folder[0]) for folder in ("a1", "a2", "b1")}

    def variant(parent, **kernels):
        return {"parent": parent, **({"kernels": kernels} if kernels else {})}

    plan = {
        "variants": {
            "root": variant(None, b="b1"),
            "up": variant("root", a="a1", b="b1"),
            "again": variant("up", a="a1", b="b1"),
            "other": variant("up", a="a2", b="b1"),
            "down": variant("up"),
            "unbuilt": variant("down", b="b9"),
        }
    }

    found = new_kernels(plan, results)
    assert {name: [one.name for one in given] for name, given in found.items()} == {"up": ["a"]}


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


def read(campaign):
    return read_kernels(read_record(campaign.plan), campaign.root)


def test_records_of_a_kernel_are_read_from_the_projects_folder(campaign):
    entries = [chosen(1, 1.2, published=True), chosen(16, 1.0, published=False)]
    campaign.give_kernel("float32", [timed(16, 4.0)], {"outcome": "tuned", "chosen": entries})
    (found,) = read(campaign).values()

    assert (found.name, found.touches, found.size) == ("decode-attention", ("attention",), "batch")
    (one,) = found.calls
    assert (one.fallback_s, one.speedup) == (4e-5, 4.0)
    assert (one.dimensions, one.config) == ({"batch": 16, "heads": 4}, {"block": 16})
    (tuning,) = found.tunings
    assert (tuning.shape, tuning.skipped) == ("heads4", None)
    assert [(c.config["block"], c.speedup, c.published) for c in tuning.choices] == [
        (64, 1.2, True),
        (16, 1.0, False),
    ]


def test_a_tuning_that_was_skipped_says_why(campaign):
    entries = [chosen(16, None, published=False)]
    skipped = {"outcome": "skipped", "detail": "1.2% of the time", "chosen": entries}
    campaign.give_kernel("float32", [], skipped)
    ((tuning,),) = (one.tunings for one in read(campaign).values())

    assert tuning.skipped == "1.2% of the time"
    assert [(c.published, c.speedup, c.low) for c in tuning.choices] == [(False, None, None)]


def test_what_is_not_made_yet_is_left_out(campaign):
    assert read(campaign) == {}
    campaign.alter_variant("float32", kernels={"decode-attention": "results/kernels/x/y/z"})
    assert read(campaign) == {}
    campaign.give_kernel("float32", [], {"outcome": "tuned", "chosen": []})
    for record in campaign.root.glob("results/kernels/*/*/*/*.json"):
        record.unlink()
    (found,) = read(campaign).values()
    assert (found.touches, found.calls, found.tunings) == (("attention",), (), ())


@pytest.mark.parametrize(
    ("calls", "tuned", "where"),
    [
        ([{}], {"outcome": "tuned", "chosen": []}, "microbench"),
        ([timed(1, 2.0, low=None)], {"outcome": "tuned", "chosen": []}, "microbench"),
        ([], {"outcome": "tuned", "chosen": [1]}, "heads4"),
        ([], {"outcome": "skipped", "chosen": []}, "heads4"),
        ([], {"outcome": "tuned"}, "heads4"),
    ],
)
def test_a_foreign_record_is_named(campaign, calls, tuned, where):
    campaign.give_kernel("float32", calls, tuned)

    with pytest.raises(LeverbenchError, match=rf"{where}\.json: not what is known of a kernel"):
        read(campaign)
