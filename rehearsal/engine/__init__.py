"""Starts ranks and records what they did."""
