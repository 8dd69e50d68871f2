"""Is a map true: insertion and deletion, localisation, sanity, scores with bootstrap intervals.

How a map comes about is told in `attribution` and `clusters`.
"""
