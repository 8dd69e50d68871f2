"""One file a task: everything that differs between tasks, and nothing that does not.

What the files share is in `base` (a task), `results` (answers as objects) and `findings` (what of them is explained).
How a model is explained belongs into `explanations`; a head's network into `heads`.
"""
