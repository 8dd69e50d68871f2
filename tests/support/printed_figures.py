"""Figures as papers print them: rounded or cut off."""


def is_printed(value: float, printed: float) -> bool:
    unit = 1 if isinstance(printed, int) else 0.1
    rounded, cut = round(value / unit) * unit, value // unit * unit
    return abs(value - printed) <= 0.005 * printed or min(abs(rounded - printed), abs(cut - printed)) < 1e-6
