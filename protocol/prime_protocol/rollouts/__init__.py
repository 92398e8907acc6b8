"""The rollout file: its rows, its byte layout, the one strict reader and writer, its Merkle root.

Pure. Whether the tokens are the model's is decided in prime_protocol.proofs.
"""
