"""Optional transports for hints, one file per broker; each needs an extra of its own. See `ports.queue`."""
