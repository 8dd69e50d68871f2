"""What each cluster of a PaCa model does, over a data set.

vitreous atlas runs/demo shapes
"""

from pathlib import Path

from vitreous.clusters.atlas import ATLAS_RANKING
from vitreous.errors import InputError
from vitreous.evaluations.settings import open_for
from vitreous.explanations.atlas_folder import write_atlas
from vitreous.explanations.explaining import Plan
from vitreous.runs.results import require_positive
from vitreous.runtime.distributed import processes
from vitreous.score import load_divided


def atlas(
    model: str,
    data: str,
    *,
    like: str | None = None,
    cluster: int | None = None,
    ranking: str = ATLAS_RANKING,
    stage: int | None = None,
    block: int | None = None,
    split: str = "val",
    follow: bool = False,
    limit: int | None = None,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    out: Path = Path("atlas"),
) -> Path:
    """Show over a data set what each cluster of a PaCa model does.

    For every cluster: the regions it fires at most, its importance for every class, its purity, its nearest clusters,
    its part in wrong answers and on the background. Of a detector, a segmenter or a keypoint model the best finding of
    every image is explained; images in which nothing is found are left out. Memory does not grow with the data, and
    several processes divide it (torchrun --standalone --nproc-per-node 2 -m vitreous atlas runs/demo shapes). After a
    kill, the same command does only what is missing, with any number of processes.

    Written to --out: index.html with its pictures, and atlas.json with all numbers. An earlier result there is
    replaced; any other content is left alone and refused.

    Examples:
        vitreous atlas runs/demo shapes
        vitreous atlas runs/demo shapes --limit 300 --like photo.jpg --cluster 3
        vitreous atlas runs/mine photos --stage 2 --ranking logit_gate --out runs/mine/atlas

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info).
        data: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        like: An image; found are those of the data in which a cluster fires as in this one.
        cluster: Of --like: the cluster, counted from 0; default: the one most important in the image.
        ranking: How importance is measured: integrated, ablation, value_gate or logit_gate (the quickest).
        stage: Stage whose clusters are shown, counted from 1 as in the paper; default: the last one with clusters.
        block: Block of the stage, counted from 1; default: the last one that has maps of its own.
        split: Split of the data to use.
        follow: Open pictures that the files of the data name outside of its folder (.. or an absolute path).
        limit: Most images to use, evenly spread over the data; default: all.
        batch_size: Images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where the file does not tell.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        out: Folder to write to.

    Returns:
        The path of the page.
    """
    require_positive(batch_size=batch_size, **({} if limit is None else {"limit": limit}))
    if cluster is not None and like is None:
        raise InputError(f"--cluster {cluster} goes with --like IMAGE, in which it is looked at")
    with processes(device) as world:
        trained = world.agree(lambda: load_divided(world, model, architecture, model_args, size))
        return write_atlas(
            model,
            trained,
            data,
            world.agree(lambda: open_for(trained, data, split, follow)),
            split=split,
            limit=limit,
            plan=Plan(stage=stage, block=block),
            ranking=ranking,
            like=like,
            cluster=cluster,
            batch_size=batch_size,
            out=out,
            world=world,
        )
