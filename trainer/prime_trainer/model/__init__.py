"""The policy and all that torch computes around it: loading, segment attention, token log-probs, optimizer, ranks.

No network and no checkpoint files live here.
"""
