"""What a person calls and sees while rehearsing, in a notebook and at a terminal."""
