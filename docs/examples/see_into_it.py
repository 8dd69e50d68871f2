# %% [markdown]
# # Seeing into a PaCa classifier
#
# Cells like these open as a notebook in VS Code, in Spyder, and in Jupyter with jupytext. `vitreous demo` trains the
# model that they look into, in a few minutes on a CPU.

# %%
from PIL import Image

import vitreous
from vitreous.clusters.gates import gated, without
from vitreous.data.shapes.samples import Shapes

trained = vitreous.load_model("runs/demo")
scene = Shapes("val", size=trained.preprocess.size)[3]
picture = Image.fromarray(scene.image)

# %% [markdown]
# ## The whole explanation
# In a notebook, `explanation` alone in the last line of a cell shows the report below it; elsewhere
# `explanation.show()` opens it in the browser.

# %%
explanation = vitreous.explain(trained, picture, methods=["token_gradient", "grad_cam", "centre_blob"])
explanation.save("explanation.html")
print(f"{explanation.predicted} {explanation.probabilities[0][1]:.0%}; it is a {trained.classes[scene.label]}")

# %% [markdown]
# ## Do the clusters matter at all?
# Log-odds lost when the clusters of a stage are all made alike. A stage with "no" shows nothing that counts.

# %%
for load in explanation.load:
    print(f"stage {load.stage}: {load.drop['uniform']:+.2f} log-odds, matters: {'yes' if load.carries else 'no'}")

# %% [markdown]
# ## Which map is to be believed?
# The control `centre_blob` is a spot in the middle of the picture. A map below it tells less than a guess.

# %%
for name, scores in explanation.scores.items():
    print(f"{name:16} insertion - deletion {scores['insertion_minus_deletion']:+.3f}")

# %% [markdown]
# ## Take the most important group of clusters away
# and let the model answer again: the change is no estimate.

# %%
clusters = explanation.clusters
gate = without(clusters.groups[0], len(clusters.maps))
inputs = trained.preprocess(picture)[None]
with gated(trained.model, clusters.layer, logit_gate=gate):
    after = trained.model(inputs).softmax(-1)[0]
before = dict(explanation.probabilities)[explanation.predicted]
number = trained.classes.index(explanation.predicted)
print(f"without clusters {clusters.groups[0]}: {explanation.predicted} {before:.0%} -> {after[number]:.0%}")
