"""How much a file may ask for. Readers check these limits before they do the work; docs/data.md lists them.

A file of a few bytes can name a number of any size. Each limit is far above real data, and low enough for an ordinary
machine.
"""

# ---- pictures and what is in them
MAX_PICTURE_PIXELS = 50_000_000  # of a picture or a mask: 150 MB as 8-bit RGB
MAX_DATA_CLASSES = 100_000  # five times ImageNet-21k; a label asks for a name and weights for every number below it
MAX_KEYPOINTS = 500  # of one object; objects without keypoints still store a zero for each
MAX_PICTURE_OBJECTS = 100_000  # in the text file of one picture
MAX_MASK_PIXELS = 1 << 30  # of all masks of one picture together: 1 GiB at a byte each
MAX_CROSSINGS = 20_000_000  # of pixel columns by the outlines of one object: about 1 GB while drawing
MAX_CORNER_PIXELS = 1e5  # pixels; an outline that far outside the picture is a mistake
MAX_REGIONS = 100  # in a file: each is looked for in every picture
MAX_LOOK_PIXELS = 1 << 20  # of the patch that a region is recognised by
MAX_COORDINATE_PIXELS = 1e9  # pixels; no box edge or keypoint lies beyond it
MAX_COORDINATE_FRACTION = 1e3  # the same for YOLO, in sides of the picture

# ---- sizes of files in bytes, checked before reading
MAX_ANNOTATIONS_BYTES = 8 << 30  # a COCO file; the largest public one has 6 GB
MAX_PAGE_BYTES = 64 << 20  # the annotations of one picture
MAX_LIST_BYTES = 64 << 20  # names of classes, pictures or pictures to leave out, one per line
MAX_METADATA_BYTES = 256 << 20  # metadata.csv: some 200 characters for each picture of ImageNet
MAX_METADATA_COLUMNS = 1_000  # CelebA has 40
MAX_DESCRIPTION_BYTES = 1 << 20  # settings or a description of data; YAML takes 10 seconds for this much
MAX_RECIPE_BYTES = 100_000  # a recipe is a page of text
MAX_RESULTS_BYTES = 1 << 30  # what a verb wrote about pictures
MAX_REGIONS_BYTES = 16 << 20  # regions with a picture of each; the explorer writes some kilobytes
MAX_LABEL_BYTES = 1 << 20  # the text file of one sample in a shard
MAX_ARCHIVE_BYTES = 1 << 30  # CIFAR unpacked; it has 185 MB

# ---- names and texts
MAX_CLASS_NAME_CHARS = 1_000  # characters of a class name
MAX_FILE_NAME_BYTES = 255  # bytes between two slashes, as on all common file systems
MAX_PATH_BYTES = 4_096  # bytes, as on Linux
MAX_ARGUMENT_CHARS = 10_000  # characters of name=value on the command line

# ---- models built from a stored description
MAX_ARGUMENT_VALUE = 1 << 14  # a number among a stored model's arguments; pictures, channels and depths all lie below
MAX_STORED_TENSORS = 10_000  # of a stored model; the deepest models of timm have some 2,000
EXTRA_WEIGHTS_MARGIN = 1 << 28  # weights of a model beyond the bytes of its file: a head that is built, then dropped
