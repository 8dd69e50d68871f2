"""Is a map true: insertion and deletion, localisation, sanity, scores with bootstrap intervals.

Maps themselves are made in `attribution` and `clusters`.
"""
