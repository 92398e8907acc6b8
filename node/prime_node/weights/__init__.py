"""How a checkpoint reaches this node: the download decisions (events, download, transfers, parents: pure), and the
rim that fetches shards, resolves manifests and builds checkpoints. Serving shards to others is
prime_runtime.shardcast.
"""
