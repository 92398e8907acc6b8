"""A chain with contracts on it, for the programs that settle there. Only client.py knows web3, an optional extra."""
