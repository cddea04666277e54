"""One suite per port, shipped: whoever writes an adapter subclasses the suite and runs it with pytest."""
