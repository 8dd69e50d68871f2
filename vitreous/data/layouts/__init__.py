"""One file per layout of data on disk, each with a `LAYOUT`, and what several of them share.

Not here: the choice among layouts and everything that is the same for all of them (`data/source.py`).
"""
