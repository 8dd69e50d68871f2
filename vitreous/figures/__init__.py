"""Parameters and multiply-adds of models, counted, fitted and shown by `vitreous info`."""
