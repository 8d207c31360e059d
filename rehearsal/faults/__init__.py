"""Faults on the real trainer: each group breaks one kind of thing, and an audit judges."""
