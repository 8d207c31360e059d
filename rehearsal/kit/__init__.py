"""What at least two graders share."""
