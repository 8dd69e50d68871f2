"""Pictures with their targets: the decoder, views, the loader, and what `--data` may be.

One file a layout in `layouts`; the embedded scenes in `shapes`.
"""
