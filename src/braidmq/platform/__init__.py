"""The world outside the program: clock, disk, network, threads, randomness. tests/sim has simulated ones."""
