"""The responses of each route as the OpenAPI document describes them, with examples. No route's
behaviour depends on them.

Tests check every example, and every answer that they receive, against the schemas that are named here.
"""
