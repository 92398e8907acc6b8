"""From submission to settled outcome: draws of validators, verdicts, slashes, appeals, and what validators answer
for. Pure: no I/O, clock or randomness here.
"""
