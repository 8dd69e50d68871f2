"""Rewrite the packaged table of figures: python -m vitreous.figures (or make figures)."""

from vitreous.figures.table import TABLE_FILE, write_table
from vitreous.registry import list_models
from vitreous.runtime.progress import track

if __name__ == "__main__":
    names = list_models()
    write_table(track(names, total=len(names), label="count parameters and multiply-adds", unit="models"))
    print(f"{len(names)} models in {TABLE_FILE}")
