"""Importing this package registers every family with timm."""

from vitreous.models import paca, xcit  # noqa: F401
