"""Profiles: what a server's decode steps are made of, from the traces of the torch profiler."""
