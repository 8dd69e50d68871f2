"""The training loop's parts: settings and recipes, optimiser, schedule, state, signals.

The loop itself is the verb `train`; what it leaves behind is in `runs`.
"""
