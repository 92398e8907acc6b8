"""What a machine can do with a model before it has either: sizes, cards, and the plan that follows from both. Pure,
except that sizes.py reads a checkpoint folder. How a model is split over GPUs is decided in engine/placement.py.
"""
