"""Checkpoints of OpenMMLab's toolboxes, translated key by key.

Heads themselves are one folder up.
"""
