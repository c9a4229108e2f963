"""The version of what shapes a measurement.

A row carries the protocol that it was measured under; rows of different protocols are shown
side by side and never pooled. The history is the table in docs/protocol.md.
"""

PROTOCOL_VERSION = 1
