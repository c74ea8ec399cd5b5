"""The protocols clients speak; each maps its verbs to broker calls."""
