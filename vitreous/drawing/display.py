"""Showing a picture to whoever is there: a notebook, or a person before a screen."""

from PIL import Image


def show_picture(picture: Image.Image) -> None:
    """In a notebook below the cell; elsewhere in the system's viewer."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ModuleNotFoundError:
        in_notebook = False
    else:
        in_notebook = get_ipython() is not None
    if in_notebook:
        display(picture)
    else:
        picture.show()
