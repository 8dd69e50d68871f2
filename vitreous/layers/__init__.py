"""Building blocks of networks, and `Tap`, which names a tensor inside them.

Whole backbones are in `models`, what stands on them is in `heads`.
"""
