"""Sums and counts that can be merged, and the figures they give.

Knows predictions and targets as tensors; tables and charts of the figures belong into `reports`.
"""
