"""The explorer: a page, the server behind it, and the model that answers on its own thread."""
