"""The report of a campaign: a page, findings and figures, from whatever exists."""

from leverbench.report.render import render_report

__all__ = ["render_report"]
