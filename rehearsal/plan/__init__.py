"""The day's plan: what is due, what is weak, what is new, and how far you've come."""
