"""The next step: each module beside the baseline that it replaces."""
