"""The kinds of incident, grouped by what the pager says first."""
