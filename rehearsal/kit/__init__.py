"""What at least two graders share; see ``observe`` and ``judge``."""
