"""Measures the noise between honest engines and derives the tolerance of a run.

fit and report are pure; measure runs engine processes. Nothing here is used by a running node.
"""
