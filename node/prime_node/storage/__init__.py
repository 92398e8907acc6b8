"""Rim: the files in the node's folder: keys, journal of jobs, saved state, spool of uploads.

Holds no rules about when something is written.
"""
