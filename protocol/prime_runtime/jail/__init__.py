"""What runs on the far side of the sandbox: the process that forks jobs, and the walls it puts around each of them.

Only the standard library, and only sandbox.py starts it. Nothing here knows what a job is for.
"""
