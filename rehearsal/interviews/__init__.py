"""The mock interview: a whole session against a clock, and a scorecard with its evidence."""
