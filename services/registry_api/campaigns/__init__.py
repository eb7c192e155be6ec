"""Campaigns: the workers of a candidate extract every voice ahead of the promotion of their encoder.

What an operator wants of them is in the documents of profiles (`shared/model/profile_document`). `campaign`
holds values and rules, `kept_progress` keeps in Redis what was done, `preparation` walks through the voices,
`runner` does so in the background, `control` is what operators ask for, and `signals` holds metrics.
"""
