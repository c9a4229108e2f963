import pytest
from unit.analysis.fake_campaign import FakeCampaign, write_campaign, write_record

from leverbench.errors import LeverbenchError
from leverbench.records import read_record
from leverbench.report.profiles import read_profiles


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


def read(campaign: FakeCampaign):
    return read_profiles(read_record(campaign.plan), campaign.profiles)


def shares(**categories: float):
    return [{"category": c, "share": share, "self_us": 1.0} for c, share in categories.items()]


def test_categories_stand_in_the_order_of_the_baselines_shares(campaign):
    campaign.alter(campaign.profile("baseline"), categories=shares(norm=0.2, gemm=0.5, copy=0.3))
    for variant in ("threads-2", "float32", "decode-steps-4"):
        campaign.alter(campaign.profile(variant), categories=shares(draft=0.9, norm=0.1))
    (table,) = read(campaign)

    assert list(table.categories) == ["gemm", "copy", "norm", "draft"]
    assert table.profiles["float32"].shares == {"draft": 0.9, "norm": 0.1}


def test_without_a_baseline_the_first_profile_gives_the_order(campaign):
    campaign.profile("baseline").unlink()
    campaign.alter(campaign.profile("threads-2"), categories=shares(a=0.1, b=0.9))
    (table,) = read(campaign)

    assert list(table.categories)[:2] == ["b", "a"]
    assert table.holes["baseline"].kind == "missing"


@pytest.mark.parametrize(("share", "large"), [(0.1, None), (0.11, 0.11)])
def test_other_is_large_above_a_tenth(campaign, share, large):
    campaign.alter(campaign.profile("baseline"), categories=shares(other=share))

    assert read(campaign)[0].profiles["baseline"].large_other == large


def test_a_table_for_each_workload_and_concurrency(campaign):
    plan = read_record(campaign.plan)
    plan["profile"]["concurrency"] = [1, 16]
    plan["workloads"]["long"] = plan["workloads"]["random"]
    write_record(campaign.plan, plan)
    found = [(t.workload, t.concurrency, len(t.profiles), len(t.holes)) for t in read(campaign)]

    assert found == [
        ("random", 1, 0, 4),
        ("random", 16, 4, 0),
        ("long", 1, 0, 4),
        ("long", 16, 0, 4),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "point"},
        {"campaign": "other"},
        {"categories": [1]},
        {"machine": None},
        {"top": [{"name": "x"}]},
        {"concurrency": None},
        {"total_us": "x"},
        {"decode_steps": "x"},
        {"total_us": float("nan")},
        {"idle_share": float("inf")},
        {"categories": [{"category": "gemm", "share": -0.1}]},
        {"gaps": {"count": 3, "total_us": 9.0}},
        {"gaps": {"count": 3, "total_us": 9.0, "median_us": None}},
        {"communication": {"transfer_us": None, "wait_us": None}},
        {"tensor_activity": {"gpus": [{"any_tensor": "x"}]}},
    ],
)
def test_a_foreign_record_is_named(campaign, damage):
    campaign.alter(campaign.profile("float32"), **damage)

    with pytest.raises(LeverbenchError, match=r"float32/profile/random/c16/summary\.json"):
        read(campaign)
