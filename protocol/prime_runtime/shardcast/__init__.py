"""Weights on disk and their distribution: checkpoint files, the shard store, the shard server, upload slots,
announcements. Rim, except upload_slots and directory, which are pure. Fetching lives in prime_node.weights.
"""
