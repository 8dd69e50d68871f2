"""PaCa's clusters: the layer they come from, gates that take them away, importance, groups, causal load, the atlas.

Methods that turn clusters into a heat map are here too; other maps are in `attribution`.
"""
