"""Searches the parameters of a kernel that make it fastest on this machine."""
