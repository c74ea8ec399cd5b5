"""Groups of consumers."""
