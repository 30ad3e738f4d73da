"""The two models: the frozen target, whose features are read, and the drafter, which is trained."""
