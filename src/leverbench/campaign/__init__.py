"""The campaign file, resolved: variants, their deltas, the order of sessions, the plan."""
