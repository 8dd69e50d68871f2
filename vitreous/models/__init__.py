"""Backbones: one file a family, which registers itself with timm when it is imported. All are found by being here.

What stands on a backbone is in `heads`, what it is built of in `layers`.
"""

import pkgutil
from importlib import import_module
from pathlib import Path


def add_models(folder: str | Path) -> None:
    """Also import the families in another folder, as modules of this package: one file each, as in CONTRIBUTING."""
    __path__.append(str(folder))
    register_families()


def register_families() -> None:
    """Import every module of this package; a family calls `register`, which makes its models known to timm."""
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")):
        import_module(f"{__name__}.{module}")


register_families()
