"""Explanations of one picture, one finding or a data set, composed from the rooms below, for models of every task.

Nothing is measured or drawn here: see `faithfulness` and `reports`.
"""
