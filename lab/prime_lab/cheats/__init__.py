"""Inference engines that cheat, for the devnet and for the attack suite: an honest engine underneath and one lie on
top. Checks that catch them must not live here.
"""
