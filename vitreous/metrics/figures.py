"""How figures are written, wherever they are shown."""


def figure_text(name: str, value: float | None) -> str:
    """Losses as they are, shares in per cent, and a dash for what cannot be told, which COCO's evaluation calls -1."""
    if value is None or value == -1:
        return "–"
    return f"{value:.4f}" if "loss" in name else f"{value:.2%}"
