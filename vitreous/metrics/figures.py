"""How figures are written, wherever they are shown."""


def as_text(name: str, value: float | None) -> str:
    """Losses as they are, shares in per cent, and a dash for what cannot be told."""
    if value is None:
        return "–"
    return f"{value:.4f}" if "loss" in name else f"{value:.2%}"
