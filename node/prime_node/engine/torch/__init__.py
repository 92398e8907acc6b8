"""The torch engine: models on a CPU or one GPU with continuous batching, seeded sampling and TOPLOC proofs.

Only the engine's child process imports it; torch must not be imported anywhere else in the node.
"""
