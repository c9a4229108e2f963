"""The campaign file, resolved: variants, their deltas, the order of sessions, the plan."""

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign, Engine, Limits, Probe, Variant, Workload
from leverbench.campaign.order import session_order

__all__ = [
    "Campaign",
    "Engine",
    "Limits",
    "Probe",
    "Variant",
    "Workload",
    "load_campaign",
    "session_order",
]
