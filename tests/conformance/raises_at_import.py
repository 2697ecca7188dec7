"""A subject whose module raises when it is imported."""

raise RuntimeError("no licence found")
