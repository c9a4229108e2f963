"""Findings: short sentences, each made by a rule and naming the rows that it rests on."""

from leverbench.report.findings import campaign, levers, profiles
from leverbench.report.findings.finding import Finding
from leverbench.report.summary import Summary

__all__ = ["Finding", "findings"]

_RULES = (
    campaign.imported,
    campaign.coverage,
    campaign.target,
    campaign.removal,
    levers.exhausted,
    levers.not_applied,
    levers.answers_changed,
    levers.answers_unsteady,
    levers.answers_after_load,
    levers.verdicts,
    levers.interactions,
    levers.not_compared,
    levers.confounded,
    levers.beside,
    levers.above_ceiling,
    levers.predicted,
    levers.tuned,
    levers.crossover,
    levers.recovered,
    campaign.late,
    campaign.attached,
    campaign.noise,
    campaign.controls,
    campaign.drift,
    levers.accept_length,
    levers.draft_useless,
    campaign.relaunched,
    profiles.dominant,
    profiles.cuda_core_fallback,
    profiles.under_filled,
    profiles.communication_bound,
    profiles.host_bound,
    profiles.differences,
    profiles.category_ceilings,
    profiles.profiled,
    profiles.profiles_told,
    profiles.not_profiled,
)


def findings(summary: Summary) -> list[Finding]:
    """Returns what the campaign shows so far."""
    return [finding for rule in _RULES for finding in rule(summary)]
