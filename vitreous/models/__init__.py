"""Importing this package registers every family with timm."""

from vitreous.models import emsnet, mat, paca, partialformer, xcit  # noqa: F401
