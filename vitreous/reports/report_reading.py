"""What the reader of a report must know, for what the report holds."""

from collections.abc import Sequence
from html import escape

from vitreous.reports.explanation import Explanation

METHODS = (
    "<p><b>Maps.</b> A map tells which places mattered for the answer; every method has its own idea of that, and"
    " none is right by definition. The number beside a map asks the model itself. <b>Insertion</b> shows the "
    "picture bit by bit, the brightest places of the map first; <b>deletion</b> hides it in the same order. A "
    "faithful map makes the answer come early and go early: insertion − deletion is the area between both curves."
    " Noise has about 0; the most a map can reach depends on the picture. A control knows nothing about the "
    "model: a method that does not beat it tells nothing either.</p>"
)
LOAD = (
    "<p><b>Causal load.</b> Before you read the clusters of a stage, see whether they matter. They are made "
    "uniform (each becomes the mean of all places), or the attention to them is switched off; log-odds lost tell "
    "what the answer owes to them. Where nothing is lost the maps are decoration, however sharp.</p>"
)
CLUSTERS = (
    "<p><b>Clusters.</b> This model summarises the picture in clusters. A cluster's map shows where it gathers "
    "from. Each map is stretched to the full range of colours; its entropy tells how even it is, and a map whose "
    "entropy is close to that of a flat map says little. Clusters that look alike can replace one another: "
    "removing one of them costs nothing, and only the group tells what they carry. So read the groups first.</p>"
)
MASKING = (
    "<p><b>The score of a cluster</b> is measured as in the PaCa paper (arXiv 2203.11987): the bright area of one"
    " cluster is hidden, the model looks again, and the score is the probability that the class loses. A picture "
    "with a {hidden_with} hole is unlike the pictures the model was trained on, so a part of the loss may come "
    "from the hole and not from what it hides. Scores that are nearly equal are ordered by entropy. A negative "
    "score means that hiding the area helped.</p>"
)


def reading(explanations: Sequence[Explanation], hidden_with: str) -> str:
    parts = [METHODS] if any(item.methods for item in explanations) else []
    parts += [LOAD] if any(item.load for item in explanations) else []
    clustered = [item.clusters for item in explanations if item.clusters is not None]
    parts += [CLUSTERS] if clustered else []
    if any(clusters.ranking == "masking" for clusters in clustered):
        parts.append(MASKING.format(hidden_with=escape(hidden_with)))
    return "\n".join(parts)
