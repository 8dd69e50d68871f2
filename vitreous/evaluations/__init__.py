"""What an evaluation asks for, measures and leaves behind.

How results look is in `reports`, the counting in `metrics`.
"""
