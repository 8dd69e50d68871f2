"""Readout through clusters: the classifier sees M tokens instead of the mean of all positions.

Our own addition to PaCa. On a map X, a small network gives each of M clusters a map Z_m over positions that sums to
one; its token c_m = Z_m X is a weighted mean of the positions, and one query weighs the tokens by a_m, which sum to one
too. A linear classifier with weights W then says

    logit_k = bias_k + sum over m of a_m W_k c_m = bias_k + sum over m and positions n of a_m Z_mn W_k x_n

so that every logit is a sum of one contribution of each cluster, and that a sum over places: exactly, not to first
order. What is not said is which pixels a position has seen.

Shapes: B batch, H W grid, N = HW, M clusters, C channels.
"""

from torch import Tensor, nn

from vitreous.layers.attention import Gates
from vitreous.layers.cluster_training import READ_TERM, ClusterTraining, read_entropy
from vitreous.layers.clustering import MlpClustering, assign
from vitreous.layers.tap import Tap


class ReadoutAttention(nn.Module):
    """Attention of one query over M cluster tokens, which stay apart: (B, M, C), each times its weight.

    The tap `map` (B, 1, M, H, W) is a_m Z_m: how much of what is read comes from each position through each cluster.
    """

    gates: Gates | None = None  # as in PaCa's attention
    closed: tuple[int, ...] = ()
    note_places: bool = False  # training may set it on the instance, to learn where decisions look
    places: Tensor | None = None  # (B, H, W) of the latest forward pass in training, until the loss takes it
    note_read: bool = False  # the same for what contributions are made of
    read: tuple[Tensor, Tensor] | None = None  # places, and the features (B, H, W, C) that were read there

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cluster_norm = nn.Identity()  # where tokens are seen, as in PaCa's attention; a norm would not be a mean
        self.score = nn.Linear(dim, 1, bias=False)
        self.map = Tap()

    def forward(self, x: Tensor, assignment: Tensor, *, kept: Tensor | None = None) -> Tensor:
        """`kept` (B, M) is 0 for clusters that training drops from an image, else 1."""
        tokens = self.tokens(x, assignment)
        gates = (self.gates or Gates()) if kept is None else Gates(logit=kept)
        gates = self.with_closed(gates, assignment)
        weights = self.weights(tokens, gates.logit)
        if gates.value is not None:
            weights = weights * gates.value[..., None].to(weights.dtype)
        if self.map.listening:
            self.map((weights[..., None] * assignment)[:, None])  # (B, 1, M, H, W)
        if (self.note_places or self.note_read) and self.training:
            shares = weights.transpose(1, 2) @ assignment.flatten(2)  # (B, 1, N): sum over m of a_m Z_m
            places = shares[:, 0].unflatten(1, assignment.shape[2:])
            self.places = places if self.note_places else None
            self.read = (places, x) if self.note_read else None
        return weights * tokens

    def tokens(self, x: Tensor, assignment: Tensor) -> Tensor:
        return self.cluster_norm(assignment.flatten(2) @ x.flatten(1, 2))  # (B, M, C)

    def with_closed(self, gates: Gates, assignment: Tensor) -> Gates:
        return gates.closing(self.closed, assignment.shape[1], assignment.device) if self.closed else gates

    def weights(self, tokens: Tensor, gate: Tensor | None = None) -> Tensor:
        """How much of each cluster is read: (B, M, 1), which sums to one over the clusters whose gate is open."""
        scores = self.score(tokens)  # (B, M, 1)
        return (scores if gate is None else scores + gate.log()[..., None].to(scores.dtype)).softmax(1)


class ClusterReadout(nn.Module):
    """The readout of one stage: its map (B, H, W, C) -> weighted cluster tokens (B, M, C) for the classifier to add."""

    clustered = True
    cluster_training: ClusterTraining | None = None  # as in a stage
    cluster_terms: dict[str, Tensor] | None = None

    def __init__(self, dim: int, clusters: int, temperature: float) -> None:
        super().__init__()
        self.clustering = MlpClustering(dim, clusters, dim)
        self.temperature = temperature
        self.clusters = Tap()
        self.attention = ReadoutAttention(dim)

    def forward(self, x: Tensor) -> Tensor:
        assignment = self.clusters(assign(self.clustering(x), self.temperature))  # (B, M, H, W)
        learning = self.cluster_training if self.training else None
        kept = None if learning is None else learning.kept(assignment)
        if learning is not None:
            self.cluster_terms = learning.terms([assignment])
            if READ_TERM in learning.noted:  # reading twice costs next to nothing: there are few tokens
                gate = self.attention.with_closed(Gates(), assignment).logit
                weights = self.attention.weights(self.attention.tokens(x, assignment), gate)
                self.cluster_terms[READ_TERM] = read_entropy(weights)
        return self.attention(x, assignment, kept=kept)
