"""Everything that callers can do to speakers: one function for each verb. The first arguments are the objects
that the function works on.
"""
