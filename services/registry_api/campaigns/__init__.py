"""Campaigns: the workers of a candidate extract every voice ahead of the promotion of their encoder.

Campaigns are recorded in the documents of profiles (`shared/model/profile_document`). `campaign` has the
values and rules, `kept_progress` stores progress in Redis, `preparation` walks through the voices, `runner`
runs campaigns in the background, `control` carries out the requests of operators, and `signals` has the
metrics.
"""
