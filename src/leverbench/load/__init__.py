"""Load: the requests of a workload, the client that sends them, and what a window of them shows."""
