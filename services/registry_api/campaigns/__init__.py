"""Campaigns: the workers of a candidate extract every voice ahead of the promotion of their encoder.

`campaign` holds the values and rules, `book` keeps them in bucket and Redis, `preparation` walks through the
voices, `runner` does so in the background, `control` is what operators ask for, and `signals` holds metrics.
"""
