"""A whole test network on one machine with one command: the plan (pure), and what carries it out (rim)."""
