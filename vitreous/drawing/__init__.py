"""Drawing on pictures: heat, boxes, masks, joints, captions, sheets of panels. Pillow and numpy only.

Knows arrays and names, not models, tasks or results; charts and pages belong into `reports`.
"""
