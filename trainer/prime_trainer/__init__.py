"""The trainer: asynchronous GRPO on verified rollouts.

train.py is the loop, loss.py the objective, app.py the process around them. Code that fetches or publishes lives in
data/ and publish/, not in the loop.
"""
