"""Whether a network and its runs can work for others: the facts (rim) and the checklist made of them (pure)."""
