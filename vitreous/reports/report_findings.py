"""The part of the report that shows what a detector, a segmenter or a keypoint model found."""

from html import escape

from vitreous.drawing.panels import enlarge
from vitreous.reports.explanation import Explanation
from vitreous.reports.report_pieces import jpeg_uri

WIDTH = 240  # pixels


def findings_html(item: Explanation) -> str:
    """The drawing of the whole answer, and a list of the findings with the explained one marked."""
    answer = item.answer
    if answer is None:
        return ""
    rows = "".join(
        f"<li{' class=explained aria-current=true' if entry == answer.finding else ''}>{escape(entry['name'])}</li>"
        for entry in answer.findings
    )
    hidden = answer.total - len(answer.findings)
    more = f'<p class="quiet">and {hidden} less certain</p>' if hidden > 0 else ""
    listed = f'<ul class="findings">{rows}</ul>{more}' if rows else ""
    return (
        f'<figure class="answer"><img alt="What the model found in {escape(item.name)}" '
        f'src="{jpeg_uri(enlarge(answer.drawing, WIDTH))}"><figcaption>all that was found</figcaption></figure>{listed}'
    )
