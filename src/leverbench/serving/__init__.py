"""Servers: kept between the jobs of a run, leased to one client after another, never left behind.

This file imports nothing, because the keeper and the guardian, which live as long as a server,
load it too and have to stay small.
"""
