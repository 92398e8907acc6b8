"""Every known attack, run against the real checks, with error rates and economics.

catalog, detection, economics and report are pure; the others run engines, sandboxes and servers. The checks
themselves must not live here.
"""
