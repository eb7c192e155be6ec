"""What runs in the guarded process that decodes a clip. Imports nothing of ours from outside this folder, so
that the process stays small and holds no secret: no settings, no client, no credential ever enters it.
"""
