"""Starts ranks and records what they did. For Linux and macOS: it forks, and sets limits."""
