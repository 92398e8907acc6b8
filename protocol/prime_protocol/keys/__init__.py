"""Rotation of the log's two keys: the one that signs tree heads, and the coordinator's own."""
