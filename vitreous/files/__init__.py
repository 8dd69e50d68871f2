"""Files as such: written atomically and never through links, checked by sha256, read within stated limits.

What a file means is known elsewhere, in `data`, `models` and `runs`.
"""
