"""One file a layout of data, as people keep it on the disk.

Which of them fits an argument is decided in `data/source.py`.
"""
