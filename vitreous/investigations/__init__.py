"""Questions about what networks do, for `vitreous analyze`: one file each, found by being here, with an INVESTIGATION.

Here belongs what the papers of the five families measured to explain and justify them. Why a model gave one answer is
in `explanations`, how fast it is in `measurements`.
"""
