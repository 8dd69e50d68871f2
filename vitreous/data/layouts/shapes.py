"""The embedded scenes: nothing to download, no files."""

from vitreous.data.image_set import SPLITS
from vitreous.data.layouts.base import Layout
from vitreous.data.shapes.images import ShapesImages
from vitreous.data.targets import TARGET_KINDS

LAYOUT = Layout(
    name="embedded shapes",
    example="shapes, shapes:medium, shapes:hard (drawn on the fly, nothing to download)",
    splits=lambda data: SPLITS if data.partition(":")[0] == "shapes" else None,
    open_split=lambda request: ShapesImages(
        request.split,
        targets=request.targets,
        size=request.size,
        count=request.count,
        difficulty=request.data.partition(":")[2] or "easy",
    ),
    targets=tuple(TARGET_KINDS),
    drawn=True,
    order=10,
)
