"""Scripts for people who work on the code: `house.py` counts it, `pin_hashes.py` pins releases."""
