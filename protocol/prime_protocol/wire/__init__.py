"""How values become bytes and who signed them: ids, codec, envelope, requests and replies, wallet keys, EIP-712
documents. Pure. What entries do to the ledger does not live here.
"""
