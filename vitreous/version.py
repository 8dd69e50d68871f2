"""The version of the package, in a file of its own: what is stored names it, and must not import everything for it."""

__version__ = "0.1.0"
