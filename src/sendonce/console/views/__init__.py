"""The pages of the console, one module a page with its forms. Each calls stages, and decides nothing."""
