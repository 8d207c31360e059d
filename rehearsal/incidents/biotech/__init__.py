"""The incident room's biotech track: jobs on molecules, proteins and graphs."""
