"""One partition's log: segments of record batches, their indexes, recovery, retention, producer state."""
