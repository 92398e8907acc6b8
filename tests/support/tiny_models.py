"""Tiny checkpoints for tests: those that the devnet begins with."""
