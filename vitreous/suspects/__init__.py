"""Suspects: what a model may take a shortcut by; found over a data set by where its maps lie, and tried by hiding.

What a shortcut is, and how it is told from the truth: `verdict`. Result objects and pages are in `reports`.
"""
