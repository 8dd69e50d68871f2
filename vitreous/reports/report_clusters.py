"""The part of the report that shows clusters: whether they matter at all, which do, and which ranking is right."""

from collections.abc import Sequence
from html import escape

from vitreous.clusters.ranks import rank_correlation
from vitreous.reports.explanation import Clusters, Explanation
from vitreous.reports.report_pieces import SHOWN_GROUPS, Cell, named, number, tile


def load_html(item: Explanation) -> str:
    """What the clusters of each stage carry, and a warning where those shown carry nothing."""
    if not item.load:
        return ""
    largest = max(max(abs(load.drop["uniform"]), abs(load.drop["attention_off"])) for load in item.load) or 1.0
    shown = None if item.clusters is None else item.clusters.layer.stage
    rows = "".join(
        f"<tr><th scope='row'>stage {load.stage}{' (shown below)' if load.stage == shown else ''}</th>"
        f"<td>{_bar(load.drop['uniform'], largest)}</td>"
        f'<td class="number">{number(load.drop["uniform"])}{_flip(load.flips["uniform"])}</td>'
        f'<td class="number">{number(load.drop["attention_off"])}{_flip(load.flips["attention_off"])}</td>'
        f"<td>{'carries load' if load.carries else '<span class=wrong>carries nothing</span>'}</td></tr>"
        for load in item.load
    )
    return (
        "<h3>Causal load: do the clusters matter for this answer?</h3>"
        f"{_warning(item)}"
        '<div class="scroll"><table class="load"><thead><tr><th scope="col">stage</th>'
        '<th scope="col" class="wide">log-odds lost</th><th scope="col" class="number">clusters made uniform</th>'
        '<th scope="col" class="number">attention off</th><th scope="col">verdict</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _warning(item: Explanation) -> str:
    idle = [load.stage for load in item.load if not load.carries]
    if item.clusters is None or item.clusters.layer.stage not in idle:
        return ""
    stage = item.clusters.layer.stage
    others = ", ".join(str(load.stage) for load in item.load if load.carries)
    advice = f"Stages that carry load here: {others}." if others else "No stage with clusters carries load here."
    return (
        f'<p class="warning" role="note"><b>The clusters of stage {stage} carry nothing here.</b> The answer stays the '
        f"same when their maps are thrown away: read them as decoration, not as a reason. {advice}</p>"
    )


def _flip(flipped: bool) -> str:
    return ' <span class="wrong">answer changes</span>' if flipped else ""


def _bar(value: float, largest: float) -> str:
    length = 49 * abs(value) / largest
    kind, left = ("gain", 50.0) if value >= 0 else ("loss", 50 - length)
    return (
        '<svg class="signed" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" x="{left:.2f}" width="{length:.2f}" y="1" height="8"/>'
        '<line class="axis" x1="50" x2="50" y1="0" y2="10"/></svg>'
    )


def clusters_html(clusters: Clusters, item: Explanation, cells: Sequence[Cell], top_k: int) -> str:
    of_clusters = [cell for cell in cells if cell.stack == "clusters"]
    return (
        f"{_groups(clusters, item, of_clusters)}{_top(clusters, item, of_clusters, top_k)}"
        f"<details><summary>All {len(clusters.maps)} clusters, ranked</summary>"
        f"{_table(clusters, of_clusters)}</details>"
        f"{_removal(clusters)}"
    )


def _groups(clusters: Clusters, item: Explanation, cells: Sequence[Cell]) -> str:
    if not clusters.groups:
        return ""
    shown = list(zip(clusters.groups, clusters.group_drop, cells[len(clusters.maps) :], strict=False))
    tiles = "".join(
        tile(
            item.shown,
            cell,
            clusters.maps[list(group)].sum(0),
            alt=f"Summed map of {named(group)}",
            caption=f"<b>{named(group)}</b><br>{number(lost)} log-odds lost together",
        )
        for group, lost, cell in shown
    )
    more = f", the first {SHOWN_GROUPS} of {len(clusters.groups)}" if len(clusters.groups) > SHOWN_GROUPS else ""
    return f'<h3>Groups of clusters that look alike, removed as one{more}</h3><div class="tiles">{tiles}</div>'


def _top(clusters: Clusters, item: Explanation, cells: Sequence[Cell], top_k: int) -> str:
    scores, spread = clusters.importance[clusters.ranking].tolist(), clusters.entropy.tolist()
    tiles = "".join(
        tile(
            item.shown,
            cells[m],
            clusters.maps[m],
            alt=f"Map of cluster {m}",
            caption=f"<b>cluster {m}</b><br>score {number(scores[m], 3)}<br>entropy {spread[m]:.2f} nats",
        )
        for m in clusters.order[:top_k]
    )
    return (
        f'<h3>Single clusters by {clusters.ranking.replace("_", " ")} <span class="quiet">(score: '
        f'{clusters.unit})</span></h3><div class="tiles">{tiles}</div>'
    )


def _table(clusters: Clusters, cells: Sequence[Cell]) -> str:
    scores = clusters.importance[clusters.ranking].tolist()
    largest = max(map(abs, scores)) or 1.0
    others = [name for name in clusters.importance if name != clusters.ranking]
    columns = "".join(f'<th scope="col" class="number">{_words(name)}</th>' for name in others)
    rows = "".join(
        f'<tr><td>{rank}</td><td><button type="button" class="show" aria-pressed="false" data-stack="clusters" '
        f'data-cell="{m}" data-caption="{escape(cells[m].caption)}" aria-label="Show cluster {m}">{m}</button></td>'
        f'<td class="wide">{_bar(scores[m], largest)}</td><td class="number">{number(scores[m], 4)}</td>'
        + "".join(f'<td class="number">{number(clusters.importance[name][m].item(), 4)}</td>' for name in others)
        + f'<td class="number">{clusters.entropy[m].item():.2f}</td></tr>'
        for rank, m in enumerate(clusters.order, 1)
    )
    return (
        '<div class="ranking" tabindex="0" role="group" aria-label="Ranking of all clusters"><table><thead><tr>'
        f'<th scope="col">rank</th><th scope="col">cluster</th><th scope="col" class="wide">{_words(clusters.ranking)}'
        f'</th><th scope="col" class="number">score</th>{columns}<th scope="col" class="number">entropy</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _removal(clusters: Clusters) -> str:
    """Which ranking is right: log-odds left after its first k clusters are removed together."""
    if not clusters.counts:
        return ""
    best = max(clusters.left, key=clusters.removal_area)
    chosen = clusters.importance[clusters.ranking]
    heads = "".join(f'<th scope="col" class="number">{count} removed</th>' for count in clusters.counts)
    rows = "".join(
        f'<tr><th scope="row"><svg class="swatch" viewBox="0 0 20 4" aria-hidden="true"><line class="line-{index}" '
        f'x1="0" x2="20" y1="2" y2="2"/></svg>{_words(name)}{" <b>(best)</b>" if name == best else ""}</th>'
        + "".join(f'<td class="number">{value:.2f}</td>' for value in left)
        + f'<td class="number">{rank_correlation(clusters.importance[name][None], chosen[None]).item():.2f}</td></tr>'
        for index, (name, left) in enumerate(clusters.left.items())
    )
    return (
        "<details><summary>Which ranking is right? Log-odds left when the first clusters are removed together"
        f'</summary><p class="quiet">All clusters: {clusters.before:.2f}. A ranking is right to the degree that its '
        "line falls early. The last column is its rank correlation with the ranking chosen above.</p>"
        f'{_lines(clusters)}<div class="scroll"><table><thead><tr><th scope="col">ranking</th>{heads}'
        f'<th scope="col" class="number">agreement</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _lines(clusters: Clusters) -> str:
    values = [clusters.before, *(value for left in clusters.left.values() for value in left)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = 100 / len(clusters.counts)
    drawn = "".join(
        f'<polyline class="line-{index}" points="'
        + " ".join(
            f"{place * step:.1f},{38 - 36 * (value - low) / span:.1f}"
            for place, value in enumerate([clusters.before, *left])
        )
        + '"/>'
        for index, left in enumerate(clusters.left.values())
    )
    return f'<svg class="removal" viewBox="0 0 100 40" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def _words(name: str) -> str:
    return name.replace("_", " ")
