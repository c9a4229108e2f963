"""Models that the workflow makes by itself."""
