"""`python -m sendonce`: the same as the command `sendonce`."""

from sendonce.cli.main import run

run()
