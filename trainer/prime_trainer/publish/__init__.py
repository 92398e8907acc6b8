"""How a checkpoint leaves the trainer: bf16 copy, keyframe or delta, log entry, the origin that serves shards.

Rim. Nothing here decides what is trained.
"""
