"""Decides who gets which slots, how many, and until when.

Pure: state and now_ms in, entries out. No I/O, clock or randomness here.
"""
