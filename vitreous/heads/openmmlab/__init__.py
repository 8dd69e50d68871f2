"""Checkpoints of OpenMMLab's toolboxes, translated name by name."""
