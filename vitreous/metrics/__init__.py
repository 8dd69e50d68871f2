"""Sums and counts that can be merged, and the figures they give."""
