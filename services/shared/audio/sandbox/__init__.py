"""What runs in the guarded process that looks at an uploaded file and decodes it.

It imports nothing of ours from outside this folder, so that the process stays small and holds no secret: no
settings, no client, no credential ever enters it.
"""
