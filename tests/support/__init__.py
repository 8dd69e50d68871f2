"""What several test modules share: small models, data sets, runs, and ways to start and watch things."""
