"""Fuzzing of everything that reads bytes from outside: `fuzz/run.py --seconds 60`."""
