"""Drills, checks and verdicts."""
