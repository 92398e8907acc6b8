"""From accepted submissions to training batches.

Pure: submissions (parsing, checks), rollout_buffer (advantages, batch choice), packing. Rim: collector (HTTP,
grading). No torch and no optimizer live here.
"""
