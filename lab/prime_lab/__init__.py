"""Tools around the network that no production program imports: a seeded simulator, a whole network on one machine,
and every known attack. Nothing here may be imported by prime_protocol, prime_runtime, prime_node, prime_coordinator,
prime_explorer or prime_trainer.
"""
