"""What a person sees and calls: clock, history, notebook and terminal."""
