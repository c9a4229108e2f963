"""The fake campaign, and what its rules find."""

from collections.abc import Callable
from pathlib import Path

import pytest
from unit.analysis.fake_campaign import FakeCampaign, write_campaign

from leverbench.analysis import analyse
from leverbench.report.findings import Finding, findings
from leverbench.report.summary import summarise


@pytest.fixture
def campaign(tmp_path: Path) -> FakeCampaign:
    return write_campaign(tmp_path)


@pytest.fixture
def found(campaign: FakeCampaign) -> Callable[[str], list[Finding]]:
    """Returns the findings of one rule."""

    def of(rule: str) -> list[Finding]:
        parquet = campaign.results / "analysis/measurements.parquet"
        analyse(campaign.plan, campaign.points, campaign.attempts, parquet.parent)
        summary = summarise(campaign.plan, parquet, campaign.launches, campaign.profiles)
        return [finding for finding in findings(summary) if finding.rule == rule]

    return of
