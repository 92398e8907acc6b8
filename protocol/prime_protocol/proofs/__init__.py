"""Proof that a model produced these tokens: TOPLOC, replayed sampling, read proofs, tolerance, and how deviations add
up to a verdict. Pure; running a model does not live here.
"""
