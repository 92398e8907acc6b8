"""Checkpoints as they travel: manifest, shards, deltas, safetensors headers.

Pure. Opening files and moving bytes over the network does not live here.
"""
