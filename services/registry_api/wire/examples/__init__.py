"""What the OpenAPI document says of each route's answers, with examples. No route's behaviour depends on it.

Tests hold every example, and every answer that they see, against the schemas named here.
"""
