"""The HTTP API `/v1`: a thin surface over the same stages that the command line calls.

A handler reads what was asked, calls a stage, and writes down what it answered. It decides nothing.
"""
