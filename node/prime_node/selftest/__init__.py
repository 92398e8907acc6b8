"""`prime-node selftest`: what an engine computes on this machine, beside references, and how fast.

random_model and report are pure but for the files that random_model writes. probe runs in the engine's interpreter and
is the only module that imports torch; session starts it and the engines.
"""
