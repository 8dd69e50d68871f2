"""What stands on a backbone: pyramids, detectors, segmenters, heat maps of keypoints.

Losses and predictions are here; which data and metrics belong to them is said in `tasks`.
"""
