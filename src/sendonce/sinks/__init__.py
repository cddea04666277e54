"""Logs of others that the feed is handed on to: one module a kind (`ports.sink`)."""
