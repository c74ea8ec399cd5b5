"""The world outside the program: clock, disk, randomness. Simulated ones live in tests/sim."""
