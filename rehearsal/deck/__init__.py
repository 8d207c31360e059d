"""The deck: questions that an interviewer asks, and what a strong answer to each must say."""
