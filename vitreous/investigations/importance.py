"""What a model loses over a data set without each of its clusters: the drop of AP, of accuracy, or of mIoU.

PaCa ranks the clusters of a detector by the drop of average precision (Grainger et al., arXiv 2203.11987, 3.5). There
what a cluster's map covers is hidden in the picture; here the cluster itself is closed, and the picture stays. It is a
figure of the whole data, and no property of a picture: `vitreous explain` and `vitreous atlas` have those, at a small
part of the price. All of the model runs once more for each cluster, as if it had never been: also of a readout, whose
attention goes to the others (`vitreous mend --without-clusters` makes that model).
"""

from vitreous.clusters.gates import cluster_count, cluster_layer, gated, without
from vitreous.data.image_set import Subset
from vitreous.evaluations.answers import Conditions, samples_of, score_images
from vitreous.explanations.dataset import selection
from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings
from vitreous.runtime.distributed import World

WHOLE_MODEL = "none"  # in place of a cluster: the whole model


class ClusterImportance(Investigation):
    name = "importance"
    order = 45
    any_task = True
    asks = "what a model of any task loses over the data without each of its clusters: accuracy, AP or mIoU"
    reading = (
        "One row for each cluster: the figure by which the task is measured (top-1, COCO's AP, mIoU) on the same "
        "pictures when this cluster cannot be attended to, and what was lost by that. A loss near zero means that "
        "others carry the same, not that the cluster does nothing: copies stand in for each other. A gain means that "
        "it misled more often than it helped. Differences of a few pictures are luck: raise --limit."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows, undefined = rows_or_reasons(inquiry, importance_rows)
        colours, legend = coloured([row["model"] for row in rows])
        series = [
            Series(name, tuple(enumerate(sorted(losses(rows, name), reverse=True), 1)), colour, name)
            for name, colour in colours.items()
        ]
        chart = Chart("lost without a cluster, in points", "clusters, the most important first", tuple(series))
        columns = ("model", "without", "figure", "value", "lost", "pictures")
        return Findings(tuple(rows), (chart,), legend, undefined=undefined, columns=columns)


def losses(rows: list[dict], model: str) -> list[float]:
    return [100 * row["lost"] for row in rows if row["model"] == model and row["without"] != WHOLE_MODEL]


def importance_rows(subject: Investigated, inquiry: Inquiry) -> list[dict]:
    """The whole model first, then without each cluster, the most important first."""
    trained = subject.trained
    layer, figure = cluster_layer(trained.model), trained.build_task().main_metric
    images = samples_of(trained, inquiry.images(trained), None)
    chosen = Subset(images, selection(len(images), inquiry.limit))
    conditions = Conditions(inquiry.batch_size, 0, World(trained.device), "off")

    def value(label: str) -> float:
        return score_images(trained, chosen, 0, conditions, label=f"{subject.label}, {label}").values[figure]

    about, count = {"model": subject.label, "figure": figure}, cluster_count(trained.model, layer)
    whole = value("all clusters")
    left = []
    for number in range(count):
        with gated(trained.model, layer, logit_gate=without([number], count).to(trained.device)):
            left.append((value(f"without {number + 1} of {count}"), str(number)))
    return [
        about | {"without": name, "value": round(found, 4), "lost": round(whole - found, 4), "pictures": len(chosen)}
        for found, name in [(whole, WHOLE_MODEL), *sorted(left)]
    ]


INVESTIGATION = ClusterImportance()
