"""From any model to a heat map: the target to explain, one file per method, and controls that know nothing.

What is special to PaCa's clusters is in `clusters`; `faithfulness` measures whether a map is true.
"""
