"""Signals as in a terminal, however the tests were started."""

import signal

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP; children inherit that, and
# what is sent to them here would then prove nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
