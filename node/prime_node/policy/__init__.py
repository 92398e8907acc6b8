"""When and how much the machine works, as its owner allows.

policy is pure; enforcer and usage measure the machine and apply the decision.
"""
