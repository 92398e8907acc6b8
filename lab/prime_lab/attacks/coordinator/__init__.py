"""Attacks of a dishonest coordinator on its own log.

A coordinator can sign any entry of its own and any tree head. It cannot make an independent replay of a changed log
succeed, nor make two heads that it signed consistent.
"""
