"""The code of the guarded process that parses and decodes an uploaded file.

It imports nothing of this project from outside this folder, so that the process stays small and never
contains settings, clients or credentials.
"""
