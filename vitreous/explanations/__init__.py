"""One picture, one finding or a data set explained, with the parts of the rooms below, for models of every task.

Nothing is measured for the first time here, and nothing is drawn: see `faithfulness` and `reports`.
"""
