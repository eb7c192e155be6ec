"""Everything that callers can do to speakers: one function for each verb. Its first arguments are what it
works on.
"""
