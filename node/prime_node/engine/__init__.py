"""What runs the model: the interface of an engine (pure), the child process it runs in, and the manager that starts,
watches and restarts it (rim). The two engines are in torch/ and vllm/, C kernels in native/. Nothing here knows
leases, audits or the network.
"""
