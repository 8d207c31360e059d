"""The kinds of the biotech track, a module for each subject; ``registry`` lists them."""
