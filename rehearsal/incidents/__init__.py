"""The incident room: a real job with something wrong, or nothing, and a person on call."""
