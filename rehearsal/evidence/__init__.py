"""Reads run folders: audit, comparison, goodput, cadence, pictures."""
