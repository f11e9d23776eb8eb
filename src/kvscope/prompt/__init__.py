"""2. What is sent: conversations of an exact token count."""
