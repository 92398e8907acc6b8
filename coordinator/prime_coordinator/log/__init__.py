"""The append-only log on disk: database, batched writer, signed heads, static mirror, replay.

Rim: reads and writes files and the database. It does not decide what is appended.
"""
