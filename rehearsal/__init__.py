"""The coach: reads what ranks wrote down, and says what is wrong with it."""
