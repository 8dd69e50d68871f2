"""What stays on disk: run folder, checkpoints, model folder and its config, files of weights, folders of results;
and the trained model that comes out of them, which predicts.

How bytes are written and checked is in `files`; the loop that fills a run folder is in `training`.
"""
