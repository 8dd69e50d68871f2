"""Any model to a heat map: the target that is explained, one page a method, and controls that know nothing.

What is special to PaCa's clusters is in `clusters`; whether a map is true is asked in `faithfulness`.
"""
