"""Pictures with their targets: decoding, layouts on disk (`layouts`), embedded scenes (`shapes`), views, the loader.

Not here: tasks and models. A task names the kind of targets that it needs; data offer kinds and know no tasks.
"""
