"""Showing something to whoever is there: a notebook, or a person before a screen."""

from PIL import Image


def shown_in_notebook(item: object) -> bool:
    """Below the cell, where we are in a notebook; elsewhere nothing is shown."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ModuleNotFoundError:
        return False
    if get_ipython() is None:
        return False
    display(item)
    return True


def show_picture(picture: Image.Image) -> None:
    """In a notebook below the cell; elsewhere in the system's viewer."""
    if not shown_in_notebook(picture):
        picture.show()
