"""What each command of prime-node does."""
