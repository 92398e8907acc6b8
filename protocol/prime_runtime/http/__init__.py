"""Signed HTTP between programs, the coordinator's public JSON API, and the control API on loopback.

Rim. What a message means is decided by the handlers of each program, not here.
"""
